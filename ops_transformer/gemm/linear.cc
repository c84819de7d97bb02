// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/gemm/linear.h"

#include <fmt/format.h>

#include "ops_transformer/base/validate.h"
#include "ops_transformer/gemm/linear_run.h"

namespace ops_transformer {

void check_linear(const char* op, const ConstTensorView& x, const PackedWeights& weights, const TensorView& out,
                  const LinearOptions& options) {
  if (weights.num_gated_outputs() > 0) {
    invalid(op, fmt::format("weights were packed by pack_gate_up, for {} gated outputs: gated_linear reads them",
                            weights.num_gated_outputs()));
  }
  check_matmul(op, x, weights, out, weights.num_outputs(), options.activation);
  if (options.bias) {
    check_shape(op, "bias", *options.bias, {weights.num_outputs()});
    check_dtype(op, "bias", *options.bias, {DType::f32});
    check_rows(op, "bias", *options.bias);
    check_no_overlap(op, "out", out, "bias", *options.bias);
  }
  if (options.residual) {
    check_shape(op, "residual", *options.residual, {x.size(0), weights.num_outputs()});
    check_dtype(op, "residual", *options.residual, {out.dtype()});
    check_rows(op, "residual", *options.residual);
    check_in_place_or_apart(op, "out", out, "residual", *options.residual);
  }
}

void run_linear(Context& context, const char* op, const ConstTensorView& x, const PackedWeights& weights,
                const TensorView& out, const LinearOptions& options, const RowPrologue* prologue,
                const Work& prologue_work) {
  const std::int64_t rows = x.size(0), outputs = weights.num_outputs(), inputs = weights.num_inputs();
  const auto out_bytes = rows * outputs * std::int64_t(element_bytes(out.dtype()));
  Zone zone(context, op,
            {.bytes = std::int64_t(weights.bytes()) + rows * inputs * std::int64_t(element_bytes(x.dtype())) +
                      out_bytes * (options.residual ? 2 : 1) + prologue_work.bytes,
             .flops = 2 * rows * outputs * inputs + prologue_work.flops});
  CallScope call(context);
  const MatmulPlan plan = plan_matmul({weights.dtype(), x.dtype(), options.arithmetic, rows, inputs,
                                       (outputs + kTileOutputs - 1) / kTileOutputs, prologue != nullptr},
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
  run_matmul(call, plan, x, weights, linear_epilogue.at(context.isa()), epilogue, prologue);
}

void linear(Context& context, const ConstTensorView& x, const PackedWeights& weights, const TensorView& out,
            const LinearOptions& options) {
  constexpr const char* kOp = "linear";
  check_linear(kOp, x, weights, out, options);
  run_linear(context, kOp, x, weights, out, options);
}

}  // namespace ops_transformer
