// SPDX-License-Identifier: Apache-2.0
// levels: generic avx2 avx512
#include "ops_transformer/gemm/widen_integers_kernel.h"
#include "ops_transformer/simd/begin.h"

namespace ops_transformer::OPS_TRANSFORMER_ISA {
namespace {

template <class T>
OPS_TRANSFORMER_INLINE void widen(const T* codes, std::int64_t n, std::int32_t zero, float scale, float* out) noexcept {
  typedef T Codes __attribute__((vector_size(kLanes)));
  for (std::int64_t i = 0; i < n; i += kLanes) {
    const int lanes = int(n - i < kLanes ? n - i : kLanes);
    Codes some{};
    __builtin_memcpy(&some, codes + i, std::size_t(lanes));
    const F32 y = __builtin_convertvector(__builtin_convertvector(some, I32) - zero, F32) * splat(scale);
    lanes == kLanes ? store(out + i, y) : store_first(out + i, y, lanes);
  }
}

}  // namespace

void widen_integers(const void* erased, std::int64_t row, float* out) noexcept {
  const auto& args = *static_cast<const WidenIntegersArgs*>(erased);
  const float scale = args.scales ? args.scales[row * args.scale_stride] : 1.0f;
  if (args.x_dtype == DType::s8) {
    widen(static_cast<const std::int8_t*>(args.x) + row * args.x_stride, args.num_inputs, args.zero, scale, out);
  } else {
    widen(static_cast<const std::uint8_t*>(args.x) + row * args.x_stride, args.num_inputs, args.zero, scale, out);
  }
}

}  // namespace ops_transformer::OPS_TRANSFORMER_ISA
#include "ops_transformer/simd/end.h"
