// SPDX-License-Identifier: Apache-2.0
// levels: generic avx2 avx2_vnni avx512 avx512_vnni
#include "ops_transformer/gemm/integer_kernel.h"
#include "ops_transformer/simd/begin.h"

namespace ops_transformer::OPS_TRANSFORMER_ISA {
namespace {

#include "ops_transformer/gemm/byte_dot.inl.h"
#include "ops_transformer/gemm/tile_engine.inl.h"

#include "ops_transformer/gemm/panel_multiply.inl.h"
#include "ops_transformer/gemm/unpack_integers.inl.h"

// Integers in the tile engine's registers: four inputs a step, bytes of A signed, of B unsigned.
struct BytesTile : F32Tile {
  static constexpr int kInputsPerStep = 4;
  OPS_TRANSFORMER_INLINE static F32 multiply(F32 a, F32 b, F32 sum) noexcept {
    return (F32)dot_any((I32)sum, (I32)b, (I32)a);
  }
};
struct NibblesTile : BytesTile {
  static constexpr int kStepsOfB = 2;
  template <int Phase>
  OPS_TRANSFORMER_INLINE static F32 load_b(const std::byte* p) noexcept {
    const I32 codes = (I32)load_f32(p);
    return (F32)((Phase == 0 ? codes : codes >> 4) & 0x0f0f0f0f);
  }
};

OPS_TRANSFORMER_INLINE I32 load_ints(const float* p) noexcept {
  I32 v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}

// The sums of a single group, integers in `sums`, are brought to what they stand for: in place.
void finish_sums(const MultiplyArgs& args, const FinishedSums& finished, const std::byte* rows, float* sums) noexcept {
  const IntegerArgs& integers = *args.integers;
  for (int v = 0; v < finished.num_tiles * kVectorsPerTile; ++v) {
    const std::byte* tile = args.weights + (finished.first_tile + v / kVectorsPerTile) * args.tile_bytes;
    const int lane = v % kVectorsPerTile * kLanes;
    const F32 scale = load_scales(integers, tile, lane);
    const I32 zero = load_zeros(integers, tile, lane);
    I32 of_x_zero{};  // what x's zero takes off every row
    if (integers.x_zero != 0) {
      I32 sum_of_codes;
      __builtin_memcpy(&sum_of_codes, tile + integers.group_bytes + 4 * lane, sizeof sum_of_codes);
      of_x_zero = (sum_of_codes - zero * std::int32_t(args.num_inputs)) * integers.x_zero;
    }
    for (int r = 0; r < finished.num_rows; ++r) {
      const auto& row = *reinterpret_cast<const IntegerGroup*>(rows + r * args.x_row_bytes + integers.groups_at);
      float* const at = sums + r * kSumsPerRow + v * kLanes;
      const I32 sum = load_ints(at) - zero * splat_int(row.sum) - of_x_zero;
      store(at, integers.raw ? (F32)sum : splat(row.scale) * scale * __builtin_convertvector(sum, F32));
    }
  }
}

// Several groups: the integers of each one are scaled and added to `sums` before the next.
template <class Tile>
OPS_TRANSFORMER_INLINE void multiply_groups(const MultiplyArgs& args, std::int64_t tile, int num_tiles,
                                            const std::byte* x, std::int64_t num_rows, float* sums) noexcept {
  constexpr int kStride = kTileVectors * kLanes;
  const IntegerArgs& integers = *args.integers;
  const std::int64_t steps = integers.group_len / Tile::kInputsPerStep;
  alignas(64) float group_sums[kTileRows * kStride];
  const int num_vectors = num_tiles * kVectorsPerTile;
  for (int v0 = 0; v0 < num_vectors; v0 += kTileVectors) {
    const int vectors = num_vectors - v0 < kTileVectors ? num_vectors - v0 : kTileVectors;
    for (std::int64_t row = 0; row < num_rows; row += kTileRows) {
      const int rows = int(num_rows - row < kTileRows ? num_rows - row : kTileRows);
      const std::byte* const x_row = x + row * args.x_row_bytes;
      for (std::int64_t g = 0; g < integers.num_groups; ++g) {
        const std::byte* const group = args.weights + tile * args.tile_bytes + g * integers.group_bytes;
        const TilesOfB<Tile> b{group + v0 / kVectorsPerTile * args.tile_bytes + v0 % kVectorsPerTile * kVectorBytes,
                               args.tile_bytes};
        multiply_any_tile<Tile>(rows, vectors, RowsOfA{x_row + g * integers.group_len, args.x_row_bytes}, b, steps,
                                group_sums, kStride, TileStart::zero);
        for (int v = 0; v < vectors; ++v) {
          const std::byte* of_tile = group + (v0 + v) / kVectorsPerTile * args.tile_bytes;
          const int lane = (v0 + v) % kVectorsPerTile * kLanes;
          const F32 scale = load_scales(integers, of_tile, lane);
          const I32 zero = load_zeros(integers, of_tile, lane);
          for (int r = 0; r < rows; ++r) {
            const auto& group_of_x =
                reinterpret_cast<const IntegerGroup*>(x_row + r * args.x_row_bytes + integers.groups_at)[g];
            const I32 sum = load_ints(group_sums + r * kStride + v * kLanes) - zero * splat_int(group_of_x.sum);
            float* const at = sums + (row + r) * kSumsPerRow + (v0 + v) * kLanes;
            store(at,
                  fma(splat(group_of_x.scale) * scale, __builtin_convertvector(sum, F32), g == 0 ? F32{} : load(at)));
          }
        }
      }
    }
  }
}

template <class Tile>
OPS_TRANSFORMER_INLINE void multiply(const MultiplyArgs& args, const MultiplyRange& range, float* sums) noexcept {
  const std::byte* x = args.x + (range.first_row - args.x_first_row) * args.x_row_bytes;
  for (std::int64_t tile = range.first_tile; tile < range.last_tile; tile += kTilesPerPanel) {
    const int num_tiles = int(range.last_tile - tile < kTilesPerPanel ? range.last_tile - tile : kTilesPerPanel);
    const int num_rows = int(range.last_row - range.first_row);
    const FinishedSums finished{sums, kSumsPerRow, range.first_row, tile, num_rows, num_tiles};
    if (args.integers->num_groups > 1) {
      multiply_groups<Tile>(args, tile, num_tiles, x, num_rows, sums);
    } else {
      multiply_panel<Tile>(args, range, tile, num_tiles, sums);
      finish_sums(args, finished, x, sums);
    }
    args.epilogue(*args.epilogue_args, finished);
  }
}

}  // namespace

void multiply_bytes(const MultiplyArgs& args, const MultiplyRange& range, float* sums) noexcept {
  multiply<BytesTile>(args, range, sums);
}
void multiply_nibbles(const MultiplyArgs& args, const MultiplyRange& range, float* sums) noexcept {
  multiply<NibblesTile>(args, range, sums);
}

}  // namespace ops_transformer::OPS_TRANSFORMER_ISA
#include "ops_transformer/simd/end.h"
