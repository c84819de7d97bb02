// SPDX-License-Identifier: Apache-2.0
#include <nanobind/nanobind.h>

#include "ops_transformer/norm/rms_norm.h"
#include "python/array.h"
#include "python/bindings.h"

namespace ops_transformer::python {
namespace {

using namespace nb::literals;

ArrayOfKind fused_rmsnorm(const ArrayOfKind& x, const ArrayArgument& weight, float eps,
                          const std::optional<ArrayArgument>& residual, const std::optional<ArrayOfKind>& out,
                          const std::optional<ArrayArgument>& residual_out, float weight_offset, Context* context) {
  constexpr std::string_view kOp = "fused_rmsnorm";
  const Input input = import_input(kOp, "x", x), gains = import_input(kOp, "weight", weight);
  const auto shape = input.view.shape();
  const std::optional<Input> added = import_input(kOp, "residual", residual);
  std::optional<Output> sum;
  if (residual_out) sum = import_output(kOp, "residual_out", *residual_out);
  const Output result = output_or_new(kOp, "out", out, input, input.view.dtype(), shape);

  check_same_shape(kOp, "out", result.view, shape);
  if (added) check_same_shape(kOp, "residual", added->view, shape);
  if (sum) check_same_shape(kOp, "residual_out", sum->view, shape);
  const Matrices matrices(
      kOp, "x", shape,
      {input.view, result.view, added ? added->view : input.view, sum ? ConstTensorView(sum->view) : input.view});
  {
    const nb::gil_scoped_release released;
    RmsNormOptions options{.eps = eps, .weight_offset = weight_offset};
    for (std::int64_t i = 0; i < matrices.count(); ++i) {
      if (added) options.residual = matrices.at(added->view, i);
      if (sum) options.residual_out = matrices.at(sum->view, i);
      rms_norm(context_or_default(context), matrices.at(input.view, i), gains.view, matrices.at(result.view, i),
               options);
    }
  }
  return ArrayOfKind(result.source);
}

}  // namespace

void bind_norm(nb::module_& module) {
  module.def("fused_rmsnorm", &fused_rmsnorm, "x"_a, "weight"_a, "eps"_a.sig("1e-05") = 1e-5f,
             "residual"_a = nb::none(), "out"_a = nb::none(), nb::kw_only(), "residual_out"_a = nb::none(),
             "weight_offset"_a = 0.0f, "context"_a = nb::none(),
             R"(Root mean square normalisation (Zhang and Sennrich, 2019): x / sqrt(mean(x^2) + eps) * weight.

x [..., hidden] f32, bf16 or f16, last dimension contiguous; weight [hidden] f32 or as x; out as x,
or f32, and may be x itself. Computed in f32, rounded once. With a residual (as x), x + residual is
what gets normalised; residual_out receives that sum and may be the residual or x. weight_offset is
added to the weight (1 for Gemma).)");
}

}  // namespace ops_transformer::python
