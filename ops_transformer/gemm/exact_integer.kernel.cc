// SPDX-License-Identifier: Apache-2.0
// levels: generic avx2 avx512
#include "ops_transformer/gemm/integer_kernel.h"
#include "ops_transformer/simd/begin.h"

namespace ops_transformer::OPS_TRANSFORMER_ISA {
namespace {

#include "ops_transformer/gemm/tile_engine.inl.h"
#include "ops_transformer/gemm/unpack_integers.inl.h"

// Two tiles of 128 inputs as floats: 16 KB, half of the smallest L1.
constexpr int kPanelTiles = 2;
constexpr int kPanelInputs = 128;
constexpr int kPanelStride = kPanelTiles * kTileOutputs;
constexpr int kVectorsOfTile = kTileOutputs / kLanes;

// Inputs of a group from `first` on, `inputs` of them (rounded up to four), to floats [inputs][kPanelStride].
template <int kBits>
void expand(const IntegerArgs& integers, const std::byte* group, std::int64_t first, std::int64_t inputs,
            float* panel) noexcept {
  for (int v = 0; v < kVectorsOfTile; ++v) {
    const F32 scale = load_scales(integers, group, v * kLanes);
    const I32 zero = load_zeros(integers, group, v * kLanes);
    for (std::int64_t i = 0; i < inputs; i += 4) {
      const std::int64_t word = (first + i) * kBits / 32;
      I32 codes;
      __builtin_memcpy(&codes, group + word * 64 + v * kVectorBytes, sizeof codes);
      if (kBits == 4) codes = ((first + i) / 4 % 2 == 0 ? codes : codes >> 4) & 0x0f0f0f0f;
      for (int j = 0; j < 4; ++j) {
        const I32 code = ((codes >> (8 * j)) & 255) - zero;
        store(panel + (i + j) * kPanelStride + v * kLanes, scale * __builtin_convertvector(code, F32));
      }
    }
  }
}

template <int kBits>
void multiply(const MultiplyArgs& args, const MultiplyRange& range, float* sums) noexcept {
  const IntegerArgs& integers = *args.integers;
  alignas(64) float panel[kPanelInputs * kPanelStride];
  const std::int64_t num_rows = range.last_row - range.first_row;
  const std::byte* x = args.x + (range.first_row - args.x_first_row) * args.x_row_bytes;
  for (std::int64_t tile = range.first_tile; tile < range.last_tile; tile += kPanelTiles) {
    const int num_tiles = int(range.last_tile - tile < kPanelTiles ? range.last_tile - tile : kPanelTiles);
    for (std::int64_t first = 0; first < args.num_inputs;) {
      const std::int64_t group = first / integers.group_len, of_group = first % integers.group_len;
      const std::int64_t left = integers.group_len - of_group, inputs = left < kPanelInputs ? left : kPanelInputs;
      for (int t = 0; t < num_tiles; ++t) {
        expand<kBits>(integers, args.weights + (tile + t) * args.tile_bytes + group * integers.group_bytes, of_group,
                      inputs, panel + t * kTileOutputs);
      }
      const TileStart start = first == 0 ? TileStart::zero : TileStart::add;
      const int vectors = num_tiles * kVectorsOfTile;
      for (std::int64_t row = 0; row < num_rows; row += kTileRows) {
        const int rows = int(num_rows - row < kTileRows ? num_rows - row : kTileRows);
        const RowsOfA a{x + row * args.x_row_bytes + first * 4, args.x_row_bytes};
        for (int v = 0; v < vectors; v += kTileVectors) {
          multiply_any_tile<F32Tile>(rows, vectors - v < kTileVectors ? vectors - v : kTileVectors, a,
                                     PanelOfB{panel + v * kLanes, kPanelStride * 4}, inputs,
                                     sums + row * kPanelStride + v * kLanes, kPanelStride, start);
        }
      }
      first += inputs;
    }
    if (args.num_inputs == 0) __builtin_memset(sums, 0, std::size_t(num_rows) * kPanelStride * sizeof(float));
    args.epilogue(*args.epilogue_args, {sums, kPanelStride, range.first_row, tile, int(num_rows), num_tiles});
  }
}

}  // namespace

void multiply_exact_bytes(const MultiplyArgs& args, const MultiplyRange& range, float* sums) noexcept {
  multiply<8>(args, range, sums);
}
void multiply_exact_nibbles(const MultiplyArgs& args, const MultiplyRange& range, float* sums) noexcept {
  multiply<4>(args, range, sums);
}

}  // namespace ops_transformer::OPS_TRANSFORMER_ISA
#include "ops_transformer/simd/end.h"
