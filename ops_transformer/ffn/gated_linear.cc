// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/ffn/gated_linear.h"

#include <fmt/format.h>

#include "ops_transformer/base/validate.h"
#include "ops_transformer/ffn/gated_epilogue_kernel.h"
#include "ops_transformer/gemm/matmul.h"
#include "ops_transformer/norm/norm_prologue.h"
#include "ops_transformer/profiler/profiler.h"

namespace ops_transformer {
namespace {

constexpr const char* kOp = "gated_linear";

void validate(const ConstTensorView& x, const PackedWeights& gate_up, const TensorView& out,
              const GatedLinearOptions& options) {
  if (gate_up.num_gated_outputs() == 0 && gate_up.num_outputs() > 0) {
    invalid(kOp, fmt::format("gate_up was packed by PackedWeights::pack, for {} outputs, must be of pack_gate_up",
                             gate_up.num_outputs()));
  }
  check_matmul(kOp, x, gate_up, out, gate_up.num_gated_outputs(), options.activation);
  if (options.norm) check_row_norm(kOp, x, *options.norm, out);
  if (options.bias) {
    check_shape(kOp, "bias", *options.bias, {2 * gate_up.num_gated_outputs()});
    check_dtype(kOp, "bias", *options.bias, {DType::f32});
    check_rows(kOp, "bias", *options.bias);
    check_no_overlap(kOp, "out", out, "bias", *options.bias);
  }
}

}  // namespace

void gated_linear(Context& context, const ConstTensorView& x, const PackedWeights& gate_up, const TensorView& out,
                  const GatedLinearOptions& options) {
  validate(x, gate_up, out, options);
  const std::int64_t rows = x.size(0), outputs = gate_up.num_gated_outputs(), inputs = gate_up.num_inputs();
  std::optional<NormPrologue> norm;
  if (options.norm) norm.emplace(context, x, *options.norm);
  const Work norm_work = norm ? norm->work() : Work{};
  Zone zone(context, kOp,
            {.bytes = std::int64_t(gate_up.bytes()) + rows * inputs * std::int64_t(element_bytes(x.dtype())) +
                      rows * outputs * std::int64_t(element_bytes(out.dtype())) + norm_work.bytes,
             .flops = 4 * rows * outputs * inputs + norm_work.flops});
  CallScope call(context);
  const MatmulPlan plan = plan_matmul({gate_up.dtype(), x.dtype(), options.arithmetic, rows, inputs,
                                       gate_up.num_outputs() / kTileOutputs, norm.has_value(), gate_up.scaling()},
                                      this_device(context.isa()), call.num_threads());
  zone.plan([&] { return describe(plan); });
  EpilogueArgs epilogue{};
  epilogue.bias = options.bias ? options.bias->as<float>() : nullptr;
  epilogue.out = out.data();
  epilogue.out_stride = out.stride(0);
  epilogue.out_dtype = out.dtype();
  epilogue.num_outputs = outputs;
  epilogue.activation = options.activation;
  run_matmul(call, plan, x, gate_up, gated_epilogue.at(context.isa()), epilogue, norm ? &norm->prologue() : nullptr);
}

}  // namespace ops_transformer
