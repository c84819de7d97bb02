// SPDX-License-Identifier: Apache-2.0
// levels: generic avx2 avx512 avx512_bf16
#include "ops_transformer/ffn/gated_epilogue_kernel.h"

#include "ops_transformer/simd/begin.h"

namespace ops_transformer::OPS_TRANSFORMER_ISA {
namespace {

#include "ops_transformer/gemm/activation.inl.h"
#include "ops_transformer/simd/convert.inl.h"

}  // namespace

void gated_epilogue(const EpilogueArgs& args, const FinishedSums& tile) noexcept {
  for (int r = 0; r < tile.num_rows; ++r) {
    for (int pair = 0; pair < tile.num_tiles / 2; ++pair) {
      const float* gate = tile.sums + r * tile.row_stride + 2 * pair * kTileOutputs;
      const std::int64_t first = (tile.first_tile / 2 + pair) * kTileOutputs;
      for (int i = 0; i < kTileOutputs && first + i < args.num_outputs; i += kLanes) {
        const std::int64_t wanted = args.num_outputs - first - i;
        const int lanes = int(wanted < kLanes ? wanted : kLanes);
        F32 a = load(gate + i), b = load(gate + kTileOutputs + i);
        if (args.bias) {
          a += load_first(args.bias + first + i, lanes);
          b += load_first(args.bias + args.num_outputs + first + i, lanes);
        }
        store_any(args.out, args.out_dtype, (tile.first_row + r) * args.out_stride + first + i,
                  activate(a, args.activation) * b, lanes);
      }
    }
  }
}

}  // namespace ops_transformer::OPS_TRANSFORMER_ISA
#include "ops_transformer/simd/end.h"
