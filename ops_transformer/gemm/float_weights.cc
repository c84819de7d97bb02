// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/gemm/float_weights.h"

#include <algorithm>
#include <cstring>

#include "ops_transformer/base/memory.h"
#include "ops_transformer/gemm/float_multiply_kernel.h"

namespace ops_transformer {
namespace {

// Transposes 16 rows of units, `last_bytes` of the last unit being there.
template <class Unit>
void transpose(const void* const* rows, std::int64_t num_units, std::size_t last_bytes, std::byte* tile) {
  constexpr std::int64_t kBlock = 16;  // one cache line of each row for units of four bytes
  Unit* out = reinterpret_cast<Unit*>(tile);
  for (std::int64_t begin = 0; begin < num_units; begin += kBlock) {
    const std::int64_t end = std::min(num_units, begin + kBlock);
    for (int r = 0; r < kTileOutputs; ++r) {
      const auto* row = static_cast<const std::byte*>(rows[r]);
      for (std::int64_t i = begin; i < end; ++i) {
        Unit unit{};
        if (row) std::memcpy(&unit, row + i * std::int64_t(sizeof(Unit)), i + 1 < num_units ? sizeof unit : last_bytes);
        out[i * kTileOutputs + r] = unit;
      }
    }
  }
}

void pack_f32(const void* const* rows, std::int64_t num_inputs, std::byte* tile) {
  transpose<std::uint32_t>(rows, num_inputs, 4, tile);
}
void pack_f16(const void* const* rows, std::int64_t num_inputs, std::byte* tile) {
  transpose<std::uint16_t>(rows, num_inputs, 2, tile);
}
void pack_bf16(const void* const* rows, std::int64_t num_inputs, std::byte* tile) {
  transpose<std::uint32_t>(rows, (num_inputs + 1) / 2, num_inputs % 2 ? 2 : 4, tile);
}

std::size_t tile_bytes_f32(std::int64_t num_inputs, const WeightScaling&) {
  return std::size_t(num_inputs) * 4 * kTileOutputs;
}
std::size_t tile_bytes_16(std::int64_t num_inputs, const WeightScaling&) {
  return align_up(std::size_t(num_inputs), 2) * 2 * kTileOutputs;
}

bool reads_bf16(DType x, std::int64_t num_inputs, Isa isa) {
  return x == DType::bf16 && num_inputs % 2 == 0 && isa == Isa::avx512_bf16;
}

constexpr MatmulMethod method(std::string_view name, const Kernel<MultiplyFn>* multiply) {
  return {name, f32_row_bytes, reads_f32, &prepare_f32, multiply, true};
}
constexpr MatmulMethod kF32Method = method("f32", &multiply_f32);
constexpr MatmulMethod kF16Method = method("f16 widened", &multiply_f16);
constexpr MatmulMethod kBf16Method{"bf16", f32_row_bytes, reads_bf16, &prepare_bf16, &multiply_bf16, true};
constexpr MatmulMethod kBf16ExactMethod = method("bf16 widened", &multiply_bf16_exact);

}  // namespace

constinit const WeightFormat kF32Weights{DType::f32, tile_bytes_f32, pack_f32, kF32Method, kF32Method};
constinit const WeightFormat kBf16Weights{DType::bf16, tile_bytes_16, pack_bf16, kBf16Method, kBf16ExactMethod};
constinit const WeightFormat kF16Weights{DType::f16, tile_bytes_16, pack_f16, kF16Method, kF16Method};

}  // namespace ops_transformer
