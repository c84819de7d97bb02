// SPDX-License-Identifier: Apache-2.0
// levels: generic avx2 avx512 avx512_bf16
#include "ops_transformer/gemm/float_multiply_kernel.h"

#include "ops_transformer/simd/begin.h"

namespace ops_transformer::OPS_TRANSFORMER_ISA {
namespace {

#include "ops_transformer/gemm/tile_engine.inl.h"

#include "ops_transformer/gemm/panel_multiply.inl.h"
#include "ops_transformer/simd/convert.inl.h"

template <class Tile>
OPS_TRANSFORMER_INLINE void multiply(const MultiplyArgs& args, const MultiplyRange& range, float* sums) noexcept {
  for (std::int64_t tile = range.first_tile; tile < range.last_tile; tile += kTilesPerPanel) {
    const int num_tiles = int(range.last_tile - tile < kTilesPerPanel ? range.last_tile - tile : kTilesPerPanel);
    multiply_panel<Tile>(args, range, tile, num_tiles, sums);
    args.epilogue(*args.epilogue_args,
                  {sums, kSumsPerRow, range.first_row, tile, int(range.last_row - range.first_row), num_tiles});
  }
}

}  // namespace

void prepare_f32(const PrepareArgs& args, std::int64_t first_row, std::int64_t last_row) noexcept {
  for (std::int64_t r = first_row; r < last_row; ++r) {
    read_row(args.x, args.x_dtype, r * args.x_stride, args.num_inputs,
             reinterpret_cast<float*>(args.prepared + r * args.prepared_row_bytes));
  }
}

void prepare_bf16(const PrepareArgs& args, std::int64_t first_row, std::int64_t last_row) noexcept {
  const std::int64_t n = args.num_inputs;
  for (std::int64_t r = first_row; r < last_row; ++r) {
    std::byte* const prepared = args.prepared + r * args.prepared_row_bytes;
    for (std::int64_t i = 0; i < n; i += kLanes) {
      const int lanes = int(n - i < kLanes ? n - i : kLanes);
      const U16Half rounded = narrow_bf16(load_any(args.x, args.x_dtype, r * args.x_stride + i, lanes));
      if constexpr (kHasBf16Dot) {
        __builtin_memcpy(prepared + 2 * i, &rounded, sizeof rounded);
      } else {
        store(reinterpret_cast<float*>(prepared) + i, widen_bf16(rounded));
      }
    }
  }
}

void multiply_f32(const MultiplyArgs& args, const MultiplyRange& range, float* sums) noexcept {
  multiply<F32Tile>(args, range, sums);
}

void multiply_f16(const MultiplyArgs& args, const MultiplyRange& range, float* sums) noexcept {
  multiply<F16WidenedTile>(args, range, sums);
}

void multiply_bf16_exact(const MultiplyArgs& args, const MultiplyRange& range, float* sums) noexcept {
  multiply<Bf16WidenedTile>(args, range, sums);
}

void multiply_bf16(const MultiplyArgs& args, const MultiplyRange& range, float* sums) noexcept {
#if defined(OPS_TRANSFORMER_ISA_avx512_bf16)
  multiply<Bf16Tile>(args, range, sums);
#else
  multiply<Bf16WidenedTile>(args, range, sums);
#endif
}

}  // namespace ops_transformer::OPS_TRANSFORMER_ISA
#include "ops_transformer/simd/end.h"
