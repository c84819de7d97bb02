// SPDX-License-Identifier: Apache-2.0
// levels: generic avx2 avx512 avx512_bf16
#include "ops_transformer/gemm/linear_kernel.h"

#include "ops_transformer/simd/begin.h"

namespace ops_transformer::OPS_TRANSFORMER_ISA {
namespace {

#include "ops_transformer/gemm/activation.inl.h"

// What a tile's rows and columns of the operands start with, kLanes columns from `i` on.
struct Columns {
  const float *sums, *bias;
  std::int64_t i;
  int lanes;
};

OPS_TRANSFORMER_INLINE F32 finish(const EpilogueArgs& args, const Columns& at, std::int64_t row) noexcept {
  F32 sum = load(at.sums + at.i);  // scratch has whole tiles
  if (at.bias) sum += at.lanes == kLanes ? load(at.bias + at.i) : load_first(at.bias + at.i, at.lanes);
  sum = activate(sum, args.activation);
  return args.row_scales ? sum * splat(args.row_scales[row]) : sum;
}

template <class T>
OPS_TRANSFORMER_INLINE F32 load_lanes(const T* p, int lanes) noexcept {
  return lanes == kLanes ? load(p) : load_first(p, lanes);
}
template <class T>
OPS_TRANSFORMER_INLINE void store_lanes(T* p, F32 v, int lanes) noexcept {
  lanes == kLanes ? store(p, v) : store_first(p, v, lanes);
}

struct Region {
  std::int64_t first, n;  // columns of out
  const float* bias;
};
OPS_TRANSFORMER_INLINE Region region_of(const EpilogueArgs& args, const FinishedSums& tile) noexcept {
  const std::int64_t first = tile.first_tile * kTileOutputs;
  const std::int64_t wanted = args.num_outputs - first, there = std::int64_t(tile.num_tiles) * kTileOutputs;
  return {first, wanted < there ? wanted : there, args.bias ? args.bias + first : nullptr};
}

template <class T>
void finish_rows(const EpilogueArgs& args, const FinishedSums& tile) noexcept {
  const Region region = region_of(args, tile);
  for (int r = 0; r < tile.num_rows; ++r) {
    const std::int64_t row = tile.first_row + r, out_row = args.out_rows ? args.out_rows[row] : row;
    if (out_row < 0) continue;
    T* const out = static_cast<T*>(args.out) + out_row * args.out_stride + region.first;
    const T* added = args.residual   ? static_cast<const T*>(args.residual) + row * args.residual_stride + region.first
                     : args.out_rows ? out
                                     : nullptr;
    Columns at{tile.sums + r * tile.row_stride, region.bias, 0, kLanes};
    for (; at.i + kLanes <= region.n; at.i += kLanes) {
      const F32 y = finish(args, at, row);
      store(out + at.i, added ? y + load(added + at.i) : y);
    }
    if (at.i < region.n) {
      at.lanes = int(region.n - at.i);
      const F32 y = finish(args, at, row);
      store_lanes(out + at.i, added ? y + load_lanes(added + at.i, at.lanes) : y, at.lanes);
    }
  }
}

// To codes of eight bits, half to even.
void quantise_rows_of(const EpilogueArgs& args, const FinishedSums& tile) noexcept {
  typedef std::int8_t Codes __attribute__((vector_size(kLanes)));
  const Region region = region_of(args, tile);
  const float lowest = args.out_dtype == DType::s8 ? -128.0f : 0.0f;
  const F32 low = splat(lowest), high = splat(lowest + 255.0f), magic = splat(12582912.0f);
  I32 nan{};
  for (int r = 0; r < tile.num_rows; ++r) {
    const std::int64_t row = tile.first_row + r;
    std::byte* const out = static_cast<std::byte*>(args.out) + row * args.out_stride + region.first;
    for (Columns at{tile.sums + r * tile.row_stride, region.bias, 0, kLanes}; at.i < region.n; at.i += kLanes) {
      at.lanes = int(region.n - at.i < kLanes ? region.n - at.i : kLanes);
      F32 y = finish(args, at, row) * splat(args.inverse_out_scale);
      if (at.lanes == kLanes) {
        nan |= y != y;
      } else {
        for (int i = 0; i < at.lanes; ++i) nan[i] |= y[i] != y[i];
      }
      // Rounded within what fits, then moved by the zero.
      y = max(splat(-1000.0f), min(splat(1000.0f), y));
      const F32 whole = (y + magic) - magic + splat(float(args.out_zero));
      const I32 code = __builtin_convertvector(max(low, min(high, whole)), I32);
      const Codes narrow = __builtin_convertvector(code, Codes);
      __builtin_memcpy(out + at.i, &narrow, std::size_t(at.lanes));
    }
  }
  for (int i = 0; i < kLanes; ++i) {
    if (nan[i]) __atomic_store_n(args.saw_nan, 1, __ATOMIC_RELAXED);
  }
}

void copy_integers(const EpilogueArgs& args, const FinishedSums& tile) noexcept {
  const Region region = region_of(args, tile);
  for (int r = 0; r < tile.num_rows; ++r) {
    auto* const out = static_cast<std::int32_t*>(args.out) + (tile.first_row + r) * args.out_stride + region.first;
    __builtin_memcpy(out, tile.sums + r * tile.row_stride, std::size_t(region.n) * sizeof(std::int32_t));
  }
}

}  // namespace

void linear_epilogue(const EpilogueArgs& args, const FinishedSums& tile) noexcept {
  if (args.out_dtype == DType::f32) return finish_rows<float>(args, tile);
  if (args.out_dtype == DType::bf16) return finish_rows<BFloat16>(args, tile);
  if (args.out_dtype == DType::f16) return finish_rows<Float16>(args, tile);
  if (args.out_dtype == DType::i32) return copy_integers(args, tile);
  quantise_rows_of(args, tile);
}

}  // namespace ops_transformer::OPS_TRANSFORMER_ISA
#include "ops_transformer/simd/end.h"
