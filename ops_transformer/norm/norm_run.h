// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "ops_transformer/base/context.h"
#include "ops_transformer/base/tensor_view.h"
#include "ops_transformer/norm/norm_kernel.h"

namespace ops_transformer {

/// Operands of either norm; what it lacks is unset.
struct NormTensors {
  ConstTensorView x, weight;
  TensorView out;
  std::optional<ConstTensorView> bias, residual, added;
  std::optional<TensorView> residual_out, scales;
  float eps, weight_offset;
};

/// Throws InvalidArgument, which names the argument.
void check_norm(const char* op, const NormTensors& tensors);

/// Runs the kernel over all rows in a zone of that name; tensors have been checked. `extra_flops` an element, beside an
/// addition, a square and its sum, and two products.
void run_norm(Context& context, const char* op, const Kernel<NormFn>& kernel, const NormTensors& tensors,
              std::int64_t extra_flops);

}  // namespace ops_transformer
