// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/gemm/linear.h"

#include <fmt/format.h>

#include "ops_transformer/base/validate.h"
#include "ops_transformer/gemm/matmul.h"
#include "ops_transformer/profiler/profiler.h"

namespace ops_transformer {
namespace {

constexpr const char* kOp = "linear";

void validate(const ConstTensorView& x, const PackedWeights& weights, const TensorView& out,
              const LinearOptions& options) {
  if (weights.num_gated_outputs() > 0) {
    invalid(kOp, fmt::format("weights were packed by pack_gate_up, for {} gated outputs: gated_linear reads them",
                             weights.num_gated_outputs()));
  }
  check_matmul(kOp, x, weights, out, weights.num_outputs(), options.activation);
  if (options.bias) {
    check_shape(kOp, "bias", *options.bias, {weights.num_outputs()});
    check_dtype(kOp, "bias", *options.bias, {DType::f32});
    check_rows(kOp, "bias", *options.bias);
    check_no_overlap(kOp, "out", out, "bias", *options.bias);
  }
  if (options.residual) {
    check_shape(kOp, "residual", *options.residual, {x.size(0), weights.num_outputs()});
    check_dtype(kOp, "residual", *options.residual, {out.dtype()});
    check_rows(kOp, "residual", *options.residual);
    check_in_place_or_apart(kOp, "out", out, "residual", *options.residual);
  }
}

}  // namespace

void linear(Context& context, const ConstTensorView& x, const PackedWeights& weights, const TensorView& out,
            const LinearOptions& options) {
  validate(x, weights, out, options);
  const std::int64_t rows = x.size(0), outputs = weights.num_outputs(), inputs = weights.num_inputs();
  const auto out_bytes = rows * outputs * std::int64_t(element_bytes(out.dtype()));
  Zone zone(context, kOp,
            {.bytes = std::int64_t(weights.bytes()) + rows * inputs * std::int64_t(element_bytes(x.dtype())) +
                      out_bytes * (options.residual ? 2 : 1),
             .flops = 2 * rows * outputs * inputs});
  CallScope call(context);
  const MatmulPlan plan = plan_matmul(
      {weights.dtype(), x.dtype(), options.arithmetic, rows, inputs, (outputs + kTileOutputs - 1) / kTileOutputs},
      this_device(context.isa()), call.num_threads());
  zone.plan([&] { return describe(plan); });
  EpilogueArgs epilogue{};
  epilogue.bias = options.bias ? options.bias->as<float>() : nullptr;
  epilogue.residual = options.residual ? options.residual->data() : nullptr;
  epilogue.residual_stride = options.residual ? options.residual->stride(0) : 0;
  epilogue.out = out.data();
  epilogue.out_stride = out.stride(0);
  epilogue.out_dtype = out.dtype();
  epilogue.num_outputs = outputs;
  epilogue.activation = options.activation;
  run_matmul(call, plan, x, weights, linear_epilogue.at(context.isa()), epilogue);
}

}  // namespace ops_transformer
