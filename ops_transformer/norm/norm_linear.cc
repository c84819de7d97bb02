// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/norm/norm_linear.h"

#include "ops_transformer/base/validate.h"
#include "ops_transformer/gemm/linear_run.h"
#include "ops_transformer/norm/norm_prologue.h"

namespace ops_transformer {

void norm_linear(Context& context, const ConstTensorView& x, const RowNorm& norm, const PackedWeights& weights,
                 const TensorView& out, const LinearOptions& options) {
  constexpr const char* kOp = "norm_linear";
  check_linear(kOp, x, weights, out, options);
  check_dtype(kOp, "x", x, {DType::f32, DType::bf16, DType::f16});
  check_row_norm(kOp, x, norm, out);
  if (norm.residual_out) {
    if (options.x_rows) invalid(kOp, "norm.residual_out and x_rows are given, must be one of them");
    // A row's sum is written while other rows' results already are.
    if (options.bias) check_no_overlap(kOp, "norm.residual_out", *norm.residual_out, "bias", *options.bias);
    if (options.residual) check_no_overlap(kOp, "norm.residual_out", *norm.residual_out, "residual", *options.residual);
  }
  const NormPrologue prologue(context, x, norm);
  run_linear(context, kOp, x, weights, out, options, &prologue.prologue(), prologue.work());
}

}  // namespace ops_transformer
