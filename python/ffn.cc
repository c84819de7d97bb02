// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/ffn/ffn.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "python/activation.h"
#include "python/array.h"
#include "python/bindings.h"

namespace ops_transformer::python {
namespace {

using namespace nb::literals;

ArrayOfKind run(const ArrayOfKind& x, const std::vector<const PackedWeights*>& weight1,
                const std::vector<const PackedWeights*>& weight2, const std::string& activation,
                const std::optional<ArrayArgument>& bias1, const std::optional<ArrayArgument>& bias2,
                const std::optional<std::vector<std::int64_t>>& expert_tokens, bool expert_tokens_are_ends,
                const std::optional<ArrayOfKind>& out, bool exact, Context* context) {
  constexpr std::string_view kOp = "ffn";
  for (const auto& weights : {weight1, weight2}) {
    if (std::ranges::count(weights, static_cast<const PackedWeights*>(nullptr)) > 0)
      throw nb::type_error("ffn: weights must be PackedWeights, got None");
  }
  const Input input = import_input(kOp, "x", x);
  const std::optional<Input> first = import_input(kOp, "bias1", bias1), second = import_input(kOp, "bias2", bias2);
  const Output result = output_or_new(kOp, "out", out, input, input.view.dtype(), input.view.shape());
  check_same_shape(kOp, "out", result.view, input.view.shape());
  FfnOptions options{.activation = activation_from_name(kOp, activation),
                     .expert_tokens_are_ends = expert_tokens_are_ends,
                     .arithmetic = exact ? Arithmetic::exact : Arithmetic::fast};
  if (first) options.bias1 = first->view;
  if (second) options.bias2 = second->view;
  if (expert_tokens) options.expert_tokens = *expert_tokens;
  {
    const nb::gil_scoped_release released;
    ffn(context_or_default(context), input.view, weight1, weight2, result.view, options);
  }
  return ArrayOfKind(result.source);
}

}  // namespace

void bind_ffn(nb::module_& module) {
  module.def("ffn", &run, "x"_a, "weight1"_a, "weight2"_a, "activation"_a = "silu", nb::kw_only(),
             "bias1"_a = nb::none(), "bias2"_a = nb::none(), "expert_tokens"_a = nb::none(),
             "expert_tokens_are_ends"_a = false, "out"_a = nb::none(), "exact"_a = false, "context"_a = nb::none(),
             R"(Feed-forward network of one or more experts: activation(x w1^T + bias1) w2^T + bias2.

x [tokens, hidden] f32, bf16 or f16; weight1 and weight2 one PackedWeights for each expert, weight1
gated where it is of PackedWeights.gate_up; bias1 [experts, n1] (gates, then up) and bias2 [experts,
hidden] f32. expert_tokens: how many rows each expert has, one expert's after the other's, or with
expert_tokens_are_ends where they end; None: one expert has all. Rows past the last are not written:
with out=None they are undefined. Activations as for linear.)");
}

}  // namespace ops_transformer::python
