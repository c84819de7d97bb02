// SPDX-License-Identifier: Apache-2.0
// levels: generic avx2 avx512 avx512_bf16
#include "ops_transformer/gemm/linear_kernel.h"

#include "ops_transformer/simd/begin.h"

namespace ops_transformer::OPS_TRANSFORMER_ISA {
namespace {

#include "ops_transformer/gemm/activation.inl.h"

template <class T>
OPS_TRANSFORMER_INLINE F32 finish(const EpilogueArgs& args, F32 sum, const float* bias, const T* residual,
                                  int lanes) noexcept {
  if (bias) sum += lanes == kLanes ? load(bias) : load_first(bias, lanes);
  sum = activate(sum, args.activation);
  if (residual) sum += lanes == kLanes ? load(residual) : load_first(residual, lanes);
  return sum;
}

template <class T>
void finish_rows(const EpilogueArgs& args, const FinishedSums& tile) noexcept {
  const std::int64_t first = tile.first_tile * kTileOutputs;
  const std::int64_t wanted = args.num_outputs - first, there = std::int64_t(tile.num_tiles) * kTileOutputs;
  const std::int64_t n = wanted < there ? wanted : there;
  const float* bias = args.bias ? args.bias + first : nullptr;
  for (int r = 0; r < tile.num_rows; ++r) {
    const float* sums = tile.sums + r * tile.row_stride;
    T* out = static_cast<T*>(args.out) + (tile.first_row + r) * args.out_stride + first;
    const T* residual = args.residual
                            ? static_cast<const T*>(args.residual) + (tile.first_row + r) * args.residual_stride + first
                            : nullptr;
    std::int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
      store(out + i,
            finish(args, load(sums + i), bias ? bias + i : nullptr, residual ? residual + i : nullptr, kLanes));
    }
    if (i < n) {
      const int lanes = int(n - i);
      store_first(out + i,
                  finish(args, load(sums + i), bias ? bias + i : nullptr, residual ? residual + i : nullptr, lanes),
                  lanes);
    }
  }
}

}  // namespace

void linear_epilogue(const EpilogueArgs& args, const FinishedSums& tile) noexcept {
  if (args.out_dtype == DType::f32) return finish_rows<float>(args, tile);
  if (args.out_dtype == DType::bf16) return finish_rows<BFloat16>(args, tile);
  finish_rows<Float16>(args, tile);
}

}  // namespace ops_transformer::OPS_TRANSFORMER_ISA
#include "ops_transformer/simd/end.h"
