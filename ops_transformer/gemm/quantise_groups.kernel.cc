// SPDX-License-Identifier: Apache-2.0
// levels: generic avx2 avx512
#include "ops_transformer/gemm/integer_kernel.h"
#include "ops_transformer/simd/begin.h"

namespace ops_transformer::OPS_TRANSFORMER_ISA {
namespace {

#include "ops_transformer/simd/convert.inl.h"

typedef std::int8_t Codes __attribute__((vector_size(kLanes)));

OPS_TRANSFORMER_INLINE std::int32_t lane_sum(I32 v) noexcept {
  std::int32_t total = 0;
  for (int i = 0; i < kLanes; ++i) total += v[i];
  return total;
}
OPS_TRANSFORMER_INLINE std::int32_t lane_max(I32 v) noexcept {
  std::int32_t most = 0;
  for (int i = 0; i < kLanes; ++i) most = v[i] > most ? v[i] : most;
  return most;
}

// n values from element `begin` of x; scale: given, or nullptr.
void quantise_group(const PrepareArgs& args, std::int64_t begin, std::int64_t n, const float* given, std::byte* codes,
                    IntegerGroup& group) noexcept {
  // Magnitudes compare as integers: there NaN is above infinity, and infinity above every number.
  I32 largest{};
  for (std::int64_t i = 0; i < n; i += kLanes) {
    const int lanes = int(n - i < kLanes ? n - i : kLanes);
    const I32 magnitude = (I32)load_any(args.x, args.x_dtype, begin + i, lanes) & 0x7fffffff;
    largest = magnitude > largest ? magnitude : largest;
  }
  const std::int32_t largest_bits = lane_max(largest);
  const bool finite = largest_bits < 0x7f800000;
  float most;
  __builtin_memcpy(&most, &largest_bits, sizeof most);
  // 127 / most overflows below 2^-121: smaller groups are scaled up first, which is exact.
  const float up = !given && most < 0x1p-100f ? 0x1p100f : 1.0f;
  const float inverse = most > 0.0f ? 127.0f / (most * up) : 0.0f;
  const F32 magic = splat(12582912.0f);  // leaves the nearest integer, ties to even, in the low bits
  I32 total{};
  for (std::int64_t i = 0; i < n; i += kLanes) {
    const int lanes = int(n - i < kLanes ? n - i : kLanes);
    F32 value{};
    if (finite) {
      value = load_any(args.x, args.x_dtype, begin + i, lanes);
      value = given ? value / splat(*given) : value * splat(up) * splat(inverse);
    }
    value = max(splat(-128.0f), min(splat(127.0f), value));
    const I32 code = (I32)(value + magic) - 0x4b400000;
    total += code;
    const Codes narrow = __builtin_convertvector(code, Codes);
    __builtin_memcpy(codes + i, &narrow, std::size_t(lanes));
  }
  group.scale = !finite ? __builtin_nanf("") : given ? *given : most / 127.0f;
  group.sum = lane_sum(total);
}

void take_codes(const PrepareArgs& args, std::int64_t begin, std::int64_t n, const float* given, std::byte* codes,
                IntegerGroup& group) noexcept {
  const auto* x = static_cast<const unsigned char*>(args.x) + begin;
  const unsigned char flip = args.x_dtype == DType::u8 ? 0x80 : 0;
  std::int32_t total = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const auto code = std::int8_t(x[i] ^ flip);
    codes[i] = std::byte(code);
    total += code;
  }
  group = {given ? *given : 1.0f, total};
}

}  // namespace

void quantise_groups(const PrepareArgs& args, std::int64_t first_row, std::int64_t last_row) noexcept {
  const bool integers = args.x_dtype == DType::s8 || args.x_dtype == DType::u8;
  for (std::int64_t row = first_row; row < last_row; ++row) {
    std::byte* const codes = args.prepared + row * args.prepared_row_bytes;
    auto* const groups = reinterpret_cast<IntegerGroup*>(codes + args.groups_at);
    const float* const given = args.x_scales ? args.x_scales + row * args.x_scale_stride : nullptr;
    const std::int64_t group_len = args.group_len ? args.group_len : args.num_inputs;
    groups[0] = {};
    for (std::int64_t first = 0, g = 0; first < args.num_inputs; first += group_len, ++g) {
      const std::int64_t begin = row * args.x_stride + first;
      if (integers) {
        take_codes(args, begin, group_len, given, codes + first, groups[g]);
      } else {
        quantise_group(args, begin, group_len, given, codes + first, groups[g]);
      }
    }
    __builtin_memset(codes + args.num_inputs, 0, std::size_t(args.groups_at - args.num_inputs));
  }
}

}  // namespace ops_transformer::OPS_TRANSFORMER_ISA
#include "ops_transformer/simd/end.h"
