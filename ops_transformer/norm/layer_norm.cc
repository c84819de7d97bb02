// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/norm/layer_norm.h"

#include "ops_transformer/norm/norm_run.h"

namespace ops_transformer {

void layer_norm(Context& context, const ConstTensorView& x, const ConstTensorView& weight, const TensorView& out,
                const LayerNormOptions& options) {
  constexpr const char* kOp = "layer_norm";
  const NormTensors tensors{.x = x,
                            .weight = weight,
                            .out = out,
                            .bias = options.bias,
                            .residual = options.residual,
                            .added = {},
                            .residual_out = options.residual_out,
                            .scales = options.scales,
                            .eps = options.eps,
                            .weight_offset = 0.0f};
  check_norm(kOp, tensors);
  run_norm(context, kOp, layer_norm_rows, tensors, options.bias ? 4 : 3);  // the mean: a sum, two differences
}

}  // namespace ops_transformer
