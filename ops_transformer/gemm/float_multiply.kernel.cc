// SPDX-License-Identifier: Apache-2.0
// levels: generic avx2 avx512 avx512_bf16
#include "ops_transformer/gemm/float_multiply_kernel.h"

#include "ops_transformer/simd/begin.h"

namespace ops_transformer::OPS_TRANSFORMER_ISA {
namespace {

#include "ops_transformer/gemm/tile_engine.inl.h"
#include "ops_transformer/simd/convert.inl.h"

constexpr int kVectorsPerTile = kTileOutputs / kLanes;
constexpr int kSumsPerRow = kTilesPerPanel * kTileOutputs;

// Vectors of neighbouring tiles of packed weights. Only avx512 takes more than one tile at a time.
template <class Tile>
struct TilesOfB {
  const std::byte* data;
  std::int64_t tile_bytes;
  OPS_TRANSFORMER_INLINE const std::byte* at(std::int64_t step, int vector) const noexcept {
    constexpr int kStepBytes = kVectorsPerTile * Tile::kVectorBytesOfB;
    return data + step * kStepBytes + (vector / kVectorsPerTile) * tile_bytes +
           (vector % kVectorsPerTile) * Tile::kVectorBytesOfB;
  }
};

// For each panel of tiles, a block of inputs at a time: the block of weights comes from memory once and is in the cache
// when the next rows need it.
template <class Tile>
OPS_TRANSFORMER_INLINE void multiply(const MultiplyArgs& args, const MultiplyRange& range, float* sums) noexcept {
  constexpr int kBytesPerStepOfB = kVectorsPerTile * Tile::kVectorBytesOfB;
  const std::int64_t num_rows = range.last_row - range.first_row;
  const std::int64_t num_steps = (args.num_inputs + Tile::kInputsPerStep - 1) / Tile::kInputsPerStep;
  const std::int64_t block = args.inputs_per_block ? args.inputs_per_block / Tile::kInputsPerStep : num_steps;
  const std::byte* x = args.x + (range.first_row - args.x_first_row) * args.x_row_bytes;
  for (std::int64_t tile = range.first_tile; tile < range.last_tile; tile += kTilesPerPanel) {
    const int num_tiles = int(range.last_tile - tile < kTilesPerPanel ? range.last_tile - tile : kTilesPerPanel);
    const int num_vectors = num_tiles * kVectorsPerTile;
    std::int64_t step = 0;
    do {
      const std::int64_t steps = num_steps - step < block ? num_steps - step : block;
      const TileStart start = step == 0 ? TileStart::zero : TileStart::add;
      for (int v = 0; v < num_vectors; v += kTileVectors) {
        const int vectors = num_vectors - v < kTileVectors ? num_vectors - v : kTileVectors;
        const TilesOfB<Tile> b{args.weights + (tile + v / kVectorsPerTile) * args.tile_bytes +
                                   (v % kVectorsPerTile) * Tile::kVectorBytesOfB +
                                   step / Tile::kStepsOfB * kBytesPerStepOfB,
                               args.tile_bytes};
        for (std::int64_t row = 0; row < num_rows; row += kTileRows) {
          const int rows = int(num_rows - row < kTileRows ? num_rows - row : kTileRows);
          const RowsOfA a{x + row * args.x_row_bytes + 4 * step, args.x_row_bytes};
          multiply_any_tile<Tile>(rows, vectors, a, b, steps, sums + row * kSumsPerRow + v * kLanes, kSumsPerRow,
                                  start);
        }
      }
      step += steps;
    } while (step < num_steps);
    args.epilogue(*args.epilogue_args, {sums, kSumsPerRow, range.first_row, tile, int(num_rows), num_tiles});
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
