// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/norm/rms_norm.h"

#include "ops_transformer/norm/norm_run.h"

namespace ops_transformer {

void rms_norm(Context& context, const ConstTensorView& x, const ConstTensorView& weight, const TensorView& out,
              const RmsNormOptions& options) {
  constexpr const char* kOp = "rms_norm";
  const NormTensors tensors{.x = x,
                            .weight = weight,
                            .out = out,
                            .bias = {},
                            .residual = options.residual,
                            .added = options.added,
                            .residual_out = options.residual_out,
                            .scales = options.scales,
                            .eps = options.eps,
                            .weight_offset = options.weight_offset};
  check_norm(kOp, tensors);
  run_norm(context, kOp, rms_norm_rows, tensors, 0);
}

}  // namespace ops_transformer
