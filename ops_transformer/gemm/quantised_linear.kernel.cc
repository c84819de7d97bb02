// SPDX-License-Identifier: Apache-2.0
// levels: generic avx2 avx2_vnni avx512 avx512_vnni
#include "ops_transformer/gemm/quantised_linear_kernel.h"

#include "ops_transformer/gemm/quantise_rows_kernel.h"
#include "ops_transformer/gemm/quantised_weights.h"
#include "ops_transformer/simd/begin.h"

namespace ops_transformer::OPS_TRANSFORMER_ISA {
namespace {

#include "ops_transformer/gemm/byte_dot.inl.h"

constexpr int kTileVectors = kTileOutputs / kLanes;

// Rows by tiles whose sums, integer and f32, are in registers together.
#if defined(OPS_TRANSFORMER_SIMD_512)
constexpr int kRows = 4, kTiles = 2;  // 8 + 8 sums, 4 of weights, of 32 registers
#else
constexpr int kRows = 4, kTiles = 1;
#endif
// Rows that pass one pair of tiles between two calls of the epilogue.
constexpr std::int64_t kRowsPerCall = 16;

OPS_TRANSFORMER_INLINE I32 load_int(const std::byte* p) noexcept {
  I32 v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
OPS_TRANSFORMER_INLINE I32 splat_word(const std::int8_t* p) noexcept {
  std::int32_t word;
  __builtin_memcpy(&word, p, sizeof word);
  return splat_int(word);
}
OPS_TRANSFORMER_INLINE F32 load_halves(const std::byte* p) noexcept {
  return load(reinterpret_cast<const Float16*>(p));
}

// Keeps gcc from folding the load of the weights into each use.
#if defined(__x86_64__)
  #define OPS_TRANSFORMER_IN_REGISTER(v) __asm__("" : "+v"(v))
#else
  #define OPS_TRANSFORMER_IN_REGISTER(v)
#endif

template <DType kWeights, int kNumRows, int kNumTiles>
void multiply_rows(const MultiplyArgs& args, std::int64_t first_row, std::int64_t first_tile, float* sums,
                   std::int64_t row_stride) noexcept {
  constexpr bool kBytes = kWeights == DType::q8_0;
  constexpr int kOffset = kBytes ? 128 : kWeights == DType::q4_0 ? 8 : 0;
  constexpr int kVectors = kNumTiles * kTileVectors;
  constexpr WeightForm kForm = weight_form(kWeights);
  constexpr int kGroups = kForm.low_bits;
  const std::byte* x = args.x + (first_row - args.x_first_row) * args.x_row_bytes;
  const std::byte* weights = args.weights + first_tile * args.tile_bytes;
  F32 total[kNumRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kNumRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) total[r][v] = F32{};
  }
  for (std::int64_t left = args.num_inputs; left > 0; left -= kQuantBlockLen) {
    I32 dot[kNumRows][kVectors];
#pragma GCC unroll 8
    for (int r = 0; r < kNumRows; ++r) {
      const auto* block = reinterpret_cast<const QuantisedBlock*>(x + r * args.x_row_bytes);
      const I32 start = kOffset ? splat_int(block->sum) * -kOffset : I32{};
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) dot[r][v] = dot_start<kBytes>(start);
    }
#pragma GCC unroll 8
    for (int g = 0; g < kGroups; ++g) {
      I32 low[kVectors], high[kVectors];
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        const I32 codes =
            load_int(weights + v / kTileVectors * args.tile_bytes + g * 64 + v % kTileVectors * kVectorBytes);
        if constexpr (kBytes) {
          low[v] = codes;
        } else {
          low[v] = codes & 0x0f0f0f0f;
          high[v] = (codes >> 4) & 0x0f0f0f0f;
          OPS_TRANSFORMER_IN_REGISTER(high[v]);
        }
        OPS_TRANSFORMER_IN_REGISTER(low[v]);
      }
#pragma GCC unroll 8
      for (int r = 0; r < kNumRows; ++r) {
        const auto* block = reinterpret_cast<const QuantisedBlock*>(x + r * args.x_row_bytes);
        const I32 activations = splat_word(block->codes + 4 * g);
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) dot[r][v] = dot_add<kBytes>(dot[r][v], low[v], activations);
      }
      if constexpr (!kBytes) {
#pragma GCC unroll 8
        for (int r = 0; r < kNumRows; ++r) {
          const auto* block = reinterpret_cast<const QuantisedBlock*>(x + r * args.x_row_bytes);
          const I32 activations = splat_word(block->codes + 16 + 4 * g);
#pragma GCC unroll 8
          for (int v = 0; v < kVectors; ++v) dot[r][v] = dot_add<kBytes>(dot[r][v], high[v], activations);
        }
      }
    }
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      const std::byte* halves =
          weights + v / kTileVectors * args.tile_bytes + kForm.scales_at() + v % kTileVectors * kLanes * 2;
      const F32 scale = load_halves(halves);
      const F32 minimum = kWeights == DType::q4_1 ? load_halves(halves + 32) : F32{};
#pragma GCC unroll 8
      for (int r = 0; r < kNumRows; ++r) {
        const auto* block = reinterpret_cast<const QuantisedBlock*>(x + r * args.x_row_bytes);
        const I32 start = kOffset ? splat_int(block->sum) * -kOffset : I32{};
        const I32 products = dot_finish<kBytes>(dot[r][v], start);
        total[r][v] = fma(scale * splat(block->scale), __builtin_convertvector(products, F32), total[r][v]);
        if constexpr (kWeights == DType::q4_1) total[r][v] = fma(minimum, splat(block->scaled_sum), total[r][v]);
      }
    }
    x += sizeof(QuantisedBlock);
    weights += kForm.block_bytes();
  }
#pragma GCC unroll 8
  for (int r = 0; r < kNumRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) store(sums + r * row_stride + v * kLanes, total[r][v]);
  }
}

// One row takes one tile after the other: a single stream of weights, which the prefetchers follow across the ends of
// tiles. Pairs made 69-73 % of a pure read where single tiles made 94-105 % (Zen 4, 2 threads, Nov 2026).
template <DType kWeights, int kNumRows>
void multiply_tiles(const MultiplyArgs& args, std::int64_t row, std::int64_t first_tile, int num_tiles, float* sums,
                    std::int64_t row_stride) noexcept {
  int t = 0;
  if constexpr (kTiles == 2 && kNumRows > 1) {
    for (; t + 2 <= num_tiles; t += 2)
      multiply_rows<kWeights, kNumRows, 2>(args, row, first_tile + t, sums + t * kTileOutputs, row_stride);
  }
  for (; t < num_tiles; ++t)
    multiply_rows<kWeights, kNumRows, 1>(args, row, first_tile + t, sums + t * kTileOutputs, row_stride);
}

// Panels of tiles outside, rows inside: memory gives the weights once, L1 or L2 (a pair of tiles with 4096 inputs is
// 82 KB of q4_1) to each further group of rows.
template <DType kWeights>
void multiply(const MultiplyArgs& args, const MultiplyRange& range, float* sums) noexcept {
  const int panel = range.last_row - range.first_row <= kRows ? kTilesPerPanel : 2;
  const std::int64_t row_stride = panel * kTileOutputs;
  for (std::int64_t tile = range.first_tile; tile < range.last_tile; tile += panel) {
    const int num_tiles = int(range.last_tile - tile < panel ? range.last_tile - tile : panel);
    for (std::int64_t row = range.first_row; row < range.last_row;) {
      const std::int64_t last = range.last_row - row < kRowsPerCall ? range.last_row : row + kRowsPerCall;
      const FinishedSums finished{sums, row_stride, row, tile, int(last - row), num_tiles};
      for (float* to = sums; row < last; row += kRows, to += kRows * row_stride) {
        switch (last - row) {
          case 1:
            multiply_tiles<kWeights, 1>(args, row, tile, num_tiles, to, row_stride);
            break;
          case 2:
            multiply_tiles<kWeights, 2>(args, row, tile, num_tiles, to, row_stride);
            break;
          case 3:
            multiply_tiles<kWeights, 3>(args, row, tile, num_tiles, to, row_stride);
            break;
          default:
            multiply_tiles<kWeights, kRows>(args, row, tile, num_tiles, to, row_stride);
        }
      }
      row = last;
      args.epilogue(*args.epilogue_args, finished);
    }
  }
}

}  // namespace

void multiply_q4_0(const MultiplyArgs& args, const MultiplyRange& range, float* sums) noexcept {
  multiply<DType::q4_0>(args, range, sums);
}
void multiply_q4_1(const MultiplyArgs& args, const MultiplyRange& range, float* sums) noexcept {
  multiply<DType::q4_1>(args, range, sums);
}
void multiply_q8_0(const MultiplyArgs& args, const MultiplyRange& range, float* sums) noexcept {
  multiply<DType::q8_0>(args, range, sums);
}

}  // namespace ops_transformer::OPS_TRANSFORMER_ISA
#include "ops_transformer/simd/end.h"
