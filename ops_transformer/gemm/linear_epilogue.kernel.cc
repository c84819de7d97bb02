// SPDX-License-Identifier: Apache-2.0
// levels: generic avx2 avx512 avx512_bf16
#include "ops_transformer/gemm/linear_kernel.h"

#include "ops_transformer/simd/begin.h"

namespace ops_transformer::OPS_TRANSFORMER_ISA {
namespace {

#include "ops_transformer/gemm/activation.inl.h"
#include "ops_transformer/simd/convert.inl.h"

}  // namespace

void linear_epilogue(const EpilogueArgs& args, const FinishedSums& tile) noexcept {
  const std::int64_t first = tile.first_tile * kTileOutputs;
  const std::int64_t wanted = args.num_outputs - first, there = std::int64_t(tile.num_tiles) * kTileOutputs;
  const std::int64_t n = wanted < there ? wanted : there;
  for (int r = 0; r < tile.num_rows; ++r) {
    const float* sums = tile.sums + r * tile.row_stride;
    const std::int64_t row = tile.first_row + r;
    for (std::int64_t i = 0; i < n; i += kLanes) {
      const int lanes = int(n - i < kLanes ? n - i : kLanes);
      F32 y = load(sums + i);
      if (args.bias) y += load_any(args.bias, DType::f32, first + i, lanes);
      y = activate(y, args.activation);
      if (args.residual) y += load_any(args.residual, args.out_dtype, row * args.residual_stride + first + i, lanes);
      store_any(args.out, args.out_dtype, row * args.out_stride + first + i, y, lanes);
    }
  }
}

}  // namespace ops_transformer::OPS_TRANSFORMER_ISA
#include "ops_transformer/simd/end.h"
