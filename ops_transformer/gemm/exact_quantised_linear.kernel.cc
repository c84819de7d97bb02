// SPDX-License-Identifier: Apache-2.0
// levels: generic avx2 avx512
#include "ops_transformer/gemm/quantised_linear_kernel.h"
#include "ops_transformer/gemm/quantised_weights.h"
#include "ops_transformer/simd/begin.h"

namespace ops_transformer::OPS_TRANSFORMER_ISA {
namespace {

#include "ops_transformer/gemm/tile_engine.inl.h"

// Two tiles of 128 inputs as floats: 16 KB, half of the smallest L1.
constexpr int kPanelTiles = 2;
constexpr int kPanelInputs = 128;
constexpr int kPanelStride = kPanelTiles * kTileOutputs;
constexpr int kVectorsOfTile = kTileOutputs / kLanes;

OPS_TRANSFORMER_INLINE I32 load_codes(const std::byte* p) noexcept {
  I32 v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}

// One block of a tile to floats, [32 inputs][kPanelStride]. scale * code is exact, so a minimum adds the only rounding.
template <DType kWeights>
void expand_block(const std::byte* block, float* panel) noexcept {
  constexpr bool kBytes = kWeights == DType::q8_0;
  constexpr int kZero = kBytes ? 128 : kWeights == DType::q4_0 ? 8 : 0;
  constexpr int kMask = kBytes ? 255 : 15;
  constexpr int kGroups = int(packed_codes_bytes(kWeights)) / 64;
  for (int v = 0; v < kVectorsOfTile; ++v) {
    const auto* halves = reinterpret_cast<const Float16*>(block + packed_codes_bytes(kWeights)) + v * kLanes;
    const F32 scale = load(halves);
    const F32 minimum = kWeights == DType::q4_1 ? load(halves + kTileOutputs) : F32{};
    for (int g = 0; g < kGroups; ++g) {
      const I32 codes = load_codes(block + g * 64 + v * kVectorBytes);
      for (int j = 0; j < 4; ++j) {
        float* to = panel + (4 * g + j) * kPanelStride + v * kLanes;
        const I32 low = ((codes >> (8 * j)) & kMask) - kZero;
        store(to, scale * __builtin_convertvector(low, F32) + minimum);
        if constexpr (!kBytes) {
          const I32 high = ((codes >> (8 * j + 4)) & kMask) - kZero;
          store(to + 16 * kPanelStride, scale * __builtin_convertvector(high, F32) + minimum);
        }
      }
    }
  }
}

template <DType kWeights>
void multiply(const MultiplyArgs& args, const MultiplyRange& range, float* sums) noexcept {
  alignas(64) float panel[kPanelInputs * kPanelStride];
  const std::int64_t num_rows = range.last_row - range.first_row;
  const std::byte* x = args.x + (range.first_row - args.x_first_row) * args.x_row_bytes;
  for (std::int64_t tile = range.first_tile; tile < range.last_tile; tile += kPanelTiles) {
    const int num_tiles = int(range.last_tile - tile < kPanelTiles ? range.last_tile - tile : kPanelTiles);
    for (std::int64_t first = 0; first < args.num_inputs; first += kPanelInputs) {
      const std::int64_t inputs = args.num_inputs - first < kPanelInputs ? args.num_inputs - first : kPanelInputs;
      for (int t = 0; t < num_tiles; ++t) {
        const std::byte* block = args.weights + (tile + t) * args.tile_bytes +
                                 first / kQuantBlockLen * std::int64_t(packed_block_bytes(kWeights));
        for (std::int64_t i = 0; i < inputs; i += kQuantBlockLen, block += packed_block_bytes(kWeights))
          expand_block<kWeights>(block, panel + i * kPanelStride + t * kTileOutputs);
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
void multiply_exact_q8_0(const MultiplyArgs& args, const MultiplyRange& range, float* sums) noexcept {
  multiply<DType::q8_0>(args, range, sums);
}

}  // namespace ops_transformer::OPS_TRANSFORMER_ISA
#include "ops_transformer/simd/end.h"
