// SPDX-License-Identifier: Apache-2.0
// levels: generic avx2 avx512
#include "ops_transformer/gemm/quantised_linear_kernel.h"
#include "ops_transformer/gemm/quantised_weights.h"
#include "ops_transformer/simd/begin.h"

namespace ops_transformer::OPS_TRANSFORMER_ISA {
namespace {

#include "ops_transformer/gemm/tile_engine.inl.h"
#include "ops_transformer/gemm/unpack_weights.inl.h"

// Two tiles of 128 inputs as floats: 16 KB, half of the smallest L1.
constexpr int kPanelTiles = 2;
constexpr int kPanelInputs = 128;
constexpr int kPanelStride = kPanelTiles * kTileOutputs;
constexpr int kVectorsOfTile = kTileOutputs / kLanes;

// 32 inputs of a tile to floats, [32][kPanelStride]: those that begin at `first`, counted from the tile's block on.
// scale * code is exact, so a minimum adds the only rounding.
template <DType kWeights>
void expand(const std::byte* block, int first, float* panel) noexcept {
  constexpr WeightForm kForm = weight_form(kWeights);
  const std::byte* codes = block + first / kQuantBlockLen * kForm.part_bytes();
  for (int v = 0; v < kVectorsOfTile; ++v) {
    for (int i = 0; i < kQuantBlockLen; i += kForm.sub_len) {
      const int sub = (first + i) / kForm.sub_len;
      F32 scale = unpack_scale<kWeights>(block, v), minimum{};
      if constexpr (kForm.sub_scale_bits > 0)
        scale *= __builtin_convertvector(unpack_sub_scales<kWeights>(block, sub, v), F32);
      if constexpr (kForm.has_minimum) minimum = unpack_minimum<kWeights>(block, sub, v);
#pragma GCC unroll 8
      for (int word = 0; word < kForm.sub_len / 4; ++word) {
        const int g = i / 4 + word;
        const I32 four = unpack_codes<kWeights>(codes, g, v);
        for (int j = 0; j < 4; ++j) {
          const I32 code = ((four >> (8 * j)) & 255) - kForm.zero;
          store(panel + (4 * g + j) * kPanelStride + v * kLanes, scale * __builtin_convertvector(code, F32) + minimum);
        }
      }
    }
  }
}

template <DType kWeights>
void multiply(const MultiplyArgs& args, const MultiplyRange& range, float* sums) noexcept {
  constexpr WeightForm kForm = weight_form(kWeights);
  alignas(64) float panel[kPanelInputs * kPanelStride];
  const std::int64_t num_rows = range.last_row - range.first_row;
  const std::byte* x = args.x + (range.first_row - args.x_first_row) * args.x_row_bytes;
  for (std::int64_t tile = range.first_tile; tile < range.last_tile; tile += kPanelTiles) {
    const int num_tiles = int(range.last_tile - tile < kPanelTiles ? range.last_tile - tile : kPanelTiles);
    for (std::int64_t first = 0; first < args.num_inputs; first += kPanelInputs) {
      const std::int64_t inputs = args.num_inputs - first < kPanelInputs ? args.num_inputs - first : kPanelInputs;
      for (int t = 0; t < num_tiles; ++t) {
        const std::byte* blocks = args.weights + (tile + t) * args.tile_bytes;
        for (std::int64_t i = 0; i < inputs; i += kQuantBlockLen) {
          const std::byte* block = blocks + (first + i) / kForm.block_len * kForm.block_bytes();
          expand<kWeights>(block, int((first + i) % kForm.block_len), panel + i * kPanelStride + t * kTileOutputs);
        }
      }
      const TileStart start = first == 0 ? TileStart::zero : TileStart::add;
      const int vectors = num_tiles * kVectorsOfTile;
      for (std::int64_t row = 0; row < num_rows; row += kTileRows) {
        const int rows = int(num_rows - row < kTileRows ? num_rows - row : kTileRows);
        const RowsOfA a{x + row * args.x_row_bytes + first * 4, args.x_row_bytes};
        for (int v = 0; v < vectors; v += kTileVectors) {
          const PanelOfB b{panel + v * kLanes, kPanelStride * 4};
          multiply_any_tile<F32Tile>(rows, vectors - v < kTileVectors ? vectors - v : kTileVectors, a, b, inputs,
                                     sums + row * kPanelStride + v * kLanes, kPanelStride, start);
        }
      }
    }
    if (args.num_inputs == 0) __builtin_memset(sums, 0, std::size_t(num_rows) * kPanelStride * sizeof(float));
    args.epilogue(*args.epilogue_args, {sums, kPanelStride, range.first_row, tile, int(num_rows), num_tiles});
  }
}

}  // namespace

void multiply_exact_q4_0(const MultiplyArgs& args, const MultiplyRange& range, float* sums) noexcept {
  multiply<DType::q4_0>(args, range, sums);
}
void multiply_exact_q4_1(const MultiplyArgs& args, const MultiplyRange& range, float* sums) noexcept {
  multiply<DType::q4_1>(args, range, sums);
}
void multiply_exact_q5_0(const MultiplyArgs& args, const MultiplyRange& range, float* sums) noexcept {
  multiply<DType::q5_0>(args, range, sums);
}
void multiply_exact_q5_1(const MultiplyArgs& args, const MultiplyRange& range, float* sums) noexcept {
  multiply<DType::q5_1>(args, range, sums);
}
void multiply_exact_q8_0(const MultiplyArgs& args, const MultiplyRange& range, float* sums) noexcept {
  multiply<DType::q8_0>(args, range, sums);
}
void multiply_exact_q2_k(const MultiplyArgs& args, const MultiplyRange& range, float* sums) noexcept {
  multiply<DType::q2_k>(args, range, sums);
}
void multiply_exact_q3_k(const MultiplyArgs& args, const MultiplyRange& range, float* sums) noexcept {
  multiply<DType::q3_k>(args, range, sums);
}
void multiply_exact_q4_k(const MultiplyArgs& args, const MultiplyRange& range, float* sums) noexcept {
  multiply<DType::q4_k>(args, range, sums);
}
void multiply_exact_q5_k(const MultiplyArgs& args, const MultiplyRange& range, float* sums) noexcept {
  multiply<DType::q5_k>(args, range, sums);
}
void multiply_exact_q6_k(const MultiplyArgs& args, const MultiplyRange& range, float* sums) noexcept {
  multiply<DType::q6_k>(args, range, sums);
}

}  // namespace ops_transformer::OPS_TRANSFORMER_ISA
#include "ops_transformer/simd/end.h"
