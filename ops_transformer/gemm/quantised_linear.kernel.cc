// SPDX-License-Identifier: Apache-2.0
// levels: generic avx2 avx2_vnni avx512 avx512_vnni
#include "ops_transformer/gemm/quantised_linear_kernel.h"

#include "ops_transformer/gemm/quantise_rows_kernel.h"
#include "ops_transformer/gemm/quantised_weights.h"
#include "ops_transformer/simd/begin.h"

namespace ops_transformer::OPS_TRANSFORMER_ISA {
namespace {

#include "ops_transformer/gemm/byte_dot.inl.h"
#include "ops_transformer/gemm/unpack_weights.inl.h"

constexpr int kTileVectors = kTileOutputs / kLanes;

// Rows by tiles whose sums, integer and f32, are in registers together.
#if defined(OPS_TRANSFORMER_SIMD_512)
constexpr int kRows = 4, kTiles = 2;  // 8 + 8 sums, 4 of weights, of 32 registers
#else
constexpr int kRows = 4, kTiles = 1;
#endif
// Rows that pass one pair of tiles between two calls of the epilogue.
constexpr std::int64_t kRowsPerCall = 16;

OPS_TRANSFORMER_INLINE I32 splat_word(const std::int8_t* p) noexcept {
  std::int32_t word;
  __builtin_memcpy(&word, p, sizeof word);
  return splat_int(word);
}
// What a minimum of the sub-block `sub` is multiplied by.
template <DType kWeights>
OPS_TRANSFORMER_INLINE float scaled_sum_of(const QuantisedBlock& block, int sub) noexcept {
  if (weight_form(kWeights).sub_len == 32) return block.scaled_sum;
  return block.scale * float(sub % 2 == 0 ? block.first_sum : block.sum - block.first_sum);
}

// Keeps gcc from folding the load of the weights into each use.
#if defined(__x86_64__)
  #define OPS_TRANSFORMER_IN_REGISTER(v) __asm__("" : "+v"(v))
#else
  #define OPS_TRANSFORMER_IN_REGISTER(v)
#endif

// The activations' part of the integer sums of sub-block `i` of a block.
template <DType kWeights>
OPS_TRANSFORMER_INLINE I32 start_of(const QuantisedBlock& block, int i) noexcept {
  constexpr WeightForm kForm = weight_form(kWeights);
  if constexpr (kForm.zero == 0) return I32{};
  const std::int32_t sum = kForm.sub_len == 32 ? block.sum : i == 0 ? block.first_sum : block.sum - block.first_sum;
  return splat_int(sum * -kForm.zero);
}

// Integer sums of sub-block `i` of 32 inputs, whose planes begin at `codes`.
template <DType kWeights, int kNumRows, int kVectors>
OPS_TRANSFORMER_INLINE void dot_codes(const MultiplyArgs& args, const std::byte* x, const std::byte* codes, int i,
                                      I32 (&dot)[kNumRows][kVectors]) noexcept {
  constexpr WeightForm kForm = weight_form(kWeights);
  constexpr int kBits = kForm.code_bits(), kGroups = kForm.sub_len / 4;
#pragma GCC unroll 8
  for (int r = 0; r < kNumRows; ++r) {
    const I32 start = start_of<kWeights>(*reinterpret_cast<const QuantisedBlock*>(x + r * args.x_row_bytes), i);
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) dot[r][v] = dot_start<kBits>(start);
  }
#pragma GCC unroll 8
  for (int g = i * kGroups; g < (i + 1) * kGroups; ++g) {
    I32 four[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      four[v] = unpack_codes<kWeights>(codes + v / kTileVectors * args.tile_bytes, g, v % kTileVectors);
      OPS_TRANSFORMER_IN_REGISTER(four[v]);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kNumRows; ++r) {
      const auto* block = reinterpret_cast<const QuantisedBlock*>(x + r * args.x_row_bytes);
      const I32 activations = splat_word(block->codes + 4 * g);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) dot[r][v] = dot_add<kBits>(dot[r][v], four[v], activations);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kNumRows; ++r) {
    const I32 start = start_of<kWeights>(*reinterpret_cast<const QuantisedBlock*>(x + r * args.x_row_bytes), i);
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) dot[r][v] = dot_finish<kBits>(dot[r][v], start);
  }
}

// A block whose scale holds for all its inputs: total = fma(scale * activation scale, integer sum, total), then
// total = fma(minimum, activation scaled_sum, total).
template <DType kWeights, int kNumRows, int kVectors>
OPS_TRANSFORMER_INLINE void add_block(const MultiplyArgs& args, const std::byte* x, const std::byte* weights,
                                      F32 (&total)[kNumRows][kVectors]) noexcept {
  constexpr WeightForm kForm = weight_form(kWeights);
  I32 dot[kNumRows][kVectors];
  dot_codes<kWeights>(args, x, weights, 0, dot);
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
    const std::byte* block_of_tile = weights + v / kTileVectors * args.tile_bytes;
    const F32 scale = unpack_scale<kWeights>(block_of_tile, v % kTileVectors);
    F32 minimum{};
    if constexpr (kForm.has_minimum) minimum = unpack_minimum<kWeights>(block_of_tile, 0, v % kTileVectors);
#pragma GCC unroll 8
    for (int r = 0; r < kNumRows; ++r) {
      const auto* block = reinterpret_cast<const QuantisedBlock*>(x + r * args.x_row_bytes);
      total[r][v] = fma(scale * splat(block->scale), __builtin_convertvector(dot[r][v], F32), total[r][v]);
      if constexpr (kForm.has_minimum) total[r][v] = fma(minimum, splat(block->scaled_sum), total[r][v]);
    }
  }
}

// A block with sub-scales, which multiply the integer sums: for each 32 inputs
// of_block = fma(activation scale, sum of sub-scale * integer sum, of_block); then total = fma(scale, of_block, total),
// and for each sub-block total = fma(minimum * sub-minimum, activation scaled_sum, total).
template <DType kWeights, int kNumRows, int kVectors>
OPS_TRANSFORMER_INLINE void add_block_of_subs(const MultiplyArgs& args, const std::byte* x, const std::byte* weights,
                                              F32 (&total)[kNumRows][kVectors]) noexcept {
  constexpr WeightForm kForm = weight_form(kWeights);
  constexpr int kParts = kForm.block_len / kQuantBlockLen, kSubsOfPart = kQuantBlockLen / kForm.sub_len;
  F32 of_block[kNumRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kNumRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) of_block[r][v] = F32{};
  }
  for (int part = 0; part < kParts; ++part) {
    const std::byte* x_part = x + part * int(sizeof(QuantisedBlock));
    I32 sum[kNumRows][kVectors];
#pragma GCC unroll 2
    for (int i = 0; i < kSubsOfPart; ++i) {
      I32 dot[kNumRows][kVectors];
      dot_codes<kWeights>(args, x_part, weights + part * kForm.part_bytes(), i, dot);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        const I32 scale = unpack_sub_scales<kWeights>(weights + v / kTileVectors * args.tile_bytes,
                                                      part * kSubsOfPart + i, v % kTileVectors);
#pragma GCC unroll 8
        for (int r = 0; r < kNumRows; ++r) sum[r][v] = i == 0 ? dot[r][v] * scale : sum[r][v] + dot[r][v] * scale;
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kNumRows; ++r) {
      const F32 scale = splat(reinterpret_cast<const QuantisedBlock*>(x_part + r * args.x_row_bytes)->scale);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v)
        of_block[r][v] = fma(scale, __builtin_convertvector(sum[r][v], F32), of_block[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
    const std::byte* block = weights + v / kTileVectors * args.tile_bytes;
    const F32 scale = unpack_scale<kWeights>(block, v % kTileVectors);
#pragma GCC unroll 8
    for (int r = 0; r < kNumRows; ++r) total[r][v] = fma(scale, of_block[r][v], total[r][v]);
  }
  if constexpr (kForm.has_minimum) {
    for (int sub = 0; sub < kForm.num_subs(); ++sub) {
      const std::byte* x_part = x + sub / kSubsOfPart * int(sizeof(QuantisedBlock));
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        const F32 minimum =
            unpack_minimum<kWeights>(weights + v / kTileVectors * args.tile_bytes, sub, v % kTileVectors);
#pragma GCC unroll 8
        for (int r = 0; r < kNumRows; ++r) {
          const auto* block_of_x = reinterpret_cast<const QuantisedBlock*>(x_part + r * args.x_row_bytes);
          total[r][v] = fma(minimum, splat(scaled_sum_of<kWeights>(*block_of_x, sub)), total[r][v]);
        }
      }
    }
  }
}

template <DType kWeights, int kNumRows, int kNumTiles>
void multiply_rows(const MultiplyArgs& args, std::int64_t first_row, std::int64_t first_tile, float* sums,
                   std::int64_t row_stride) noexcept {
  constexpr WeightForm kForm = weight_form(kWeights);
  constexpr int kVectors = kNumTiles * kTileVectors;
  const std::byte* x = args.x + (first_row - args.x_first_row) * args.x_row_bytes;
  const std::byte* weights = args.weights + first_tile * args.tile_bytes;
  F32 total[kNumRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kNumRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) total[r][v] = F32{};
  }
  for (std::int64_t left = args.num_inputs; left > 0; left -= kForm.block_len) {
    if constexpr (kForm.sub_scale_bits > 0) {
      add_block_of_subs<kWeights>(args, x, weights, total);
    } else {
      add_block<kWeights>(args, x, weights, total);
    }
    x += kForm.block_len / kQuantBlockLen * sizeof(QuantisedBlock);
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
void multiply_q5_0(const MultiplyArgs& args, const MultiplyRange& range, float* sums) noexcept {
  multiply<DType::q5_0>(args, range, sums);
}
void multiply_q5_1(const MultiplyArgs& args, const MultiplyRange& range, float* sums) noexcept {
  multiply<DType::q5_1>(args, range, sums);
}
void multiply_q8_0(const MultiplyArgs& args, const MultiplyRange& range, float* sums) noexcept {
  multiply<DType::q8_0>(args, range, sums);
}
void multiply_q2_k(const MultiplyArgs& args, const MultiplyRange& range, float* sums) noexcept {
  multiply<DType::q2_k>(args, range, sums);
}
void multiply_q3_k(const MultiplyArgs& args, const MultiplyRange& range, float* sums) noexcept {
  multiply<DType::q3_k>(args, range, sums);
}
void multiply_q4_k(const MultiplyArgs& args, const MultiplyRange& range, float* sums) noexcept {
  multiply<DType::q4_k>(args, range, sums);
}
void multiply_q5_k(const MultiplyArgs& args, const MultiplyRange& range, float* sums) noexcept {
  multiply<DType::q5_k>(args, range, sums);
}
void multiply_q6_k(const MultiplyArgs& args, const MultiplyRange& range, float* sums) noexcept {
  multiply<DType::q6_k>(args, range, sums);
}

}  // namespace ops_transformer::OPS_TRANSFORMER_ISA
#include "ops_transformer/simd/end.h"
