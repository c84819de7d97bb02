// SPDX-License-Identifier: Apache-2.0
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "ops_transformer/base/validate.h"
#include "ops_transformer/ffn/gated_linear.h"
#include "ops_transformer/norm/layer_norm.h"
#include "ops_transformer/norm/norm_linear.h"
#include "ops_transformer/norm/rms_norm.h"
#include "python/activation.h"
#include "python/array.h"
#include "python/bindings.h"

namespace ops_transformer::python {
namespace {

using namespace nb::literals;

class CodesAndScales : public nb::object {
 public:
  using nb::object::object;
  explicit CodesAndScales(nb::object pair) : nb::object(std::move(pair)) {}
  static constexpr auto Name = nb::detail::const_name("tuple[ArrayT, ArrayT]");
};

/// [...] as [..., 1]: one value a row.
TensorView as_column(const TensorView& view) {
  std::array<std::int64_t, kMaxRank> shape{}, strides{};
  const auto rank = std::size_t(view.rank());
  std::ranges::copy(view.shape(), shape.begin());
  std::ranges::copy(view.strides(), strides.begin());
  shape[rank] = strides[rank] = 1;
  return {view.data(), view.dtype(), std::span(shape).first(rank + 1), std::span(strides).first(rank + 1)};
}

/// The arrays of either norm, imported and checked; run(x, out, residual, residual_out, scales) for each matrix.
struct NormCall {
  NormCall(std::string_view op, const ArrayOfKind& x_in, const ArrayArgument& weight_in,
           const std::optional<ArrayArgument>& residual_in, const std::optional<ArrayOfKind>& out_in,
           const std::optional<ArrayArgument>& residual_out_in, bool quantise)
      : x(import_input(op, "x", x_in)),
        weight(import_input(op, "weight", weight_in)),
        residual(import_input(op, "residual", residual_in)),
        result(output_or_new(op, "out", out_in, x, quantise ? DType::s8 : x.view.dtype(), x.view.shape())) {
    const auto shape = x.view.shape();
    if (residual_out_in) residual_out = import_output(op, "residual_out", *residual_out_in);
    check_same_shape(op, "out", result.view, shape);
    if (residual) check_same_shape(op, "residual", residual->view, shape);
    if (residual_out) check_same_shape(op, "residual_out", residual_out->view, shape);
    if (shape.empty()) invalid(op, "x must have at least one dimension");
    ConstTensorView column = x.view;
    if (quantise) {
      scales = new_array(x, DType::f32, shape.first(shape.size() - 1));
      if (shape.size() == std::size_t(kMaxRank)) invalid(op, "x has 8 dimensions, must have at most 7");
      column = as_column(scales->view);
    }
    matrices.emplace(
        op, "x", shape,
        std::initializer_list<ConstTensorView>{x.view, result.view, residual ? residual->view : x.view,
                                               residual_out ? ConstTensorView(residual_out->view) : x.view, column});
  }

  template <class Options>
  void fill(Options& options, std::int64_t i) const {
    if (residual) options.residual = matrices->at(residual->view, i);
    if (residual_out) options.residual_out = matrices->at(residual_out->view, i);
    if (scales) {
      const TensorView column = matrices->at(as_column(scales->view), i);
      options.scales = TensorView(column.data(), DType::f32, {column.size(0)}, {column.stride(0)});
    }
  }

  Input x, weight;
  std::optional<Input> residual;
  Output result;
  std::optional<Output> residual_out, scales;
  std::optional<Matrices> matrices;
};

void run_rms(const NormCall& call, float eps, float weight_offset, Context* context) {
  const nb::gil_scoped_release released;
  RmsNormOptions options{.eps = eps, .weight_offset = weight_offset};
  for (std::int64_t i = 0; i < call.matrices->count(); ++i) {
    call.fill(options, i);
    rms_norm(context_or_default(context), call.matrices->at(call.x.view, i), call.weight.view,
             call.matrices->at(call.result.view, i), options);
  }
}

ArrayOfKind fused_rmsnorm(const ArrayOfKind& x, const ArrayArgument& weight, float eps,
                          const std::optional<ArrayArgument>& residual, const std::optional<ArrayOfKind>& out,
                          const std::optional<ArrayArgument>& residual_out, float weight_offset, Context* context) {
  const NormCall call("fused_rmsnorm", x, weight, residual, out, residual_out, false);
  run_rms(call, eps, weight_offset, context);
  return ArrayOfKind(call.result.source);
}

CodesAndScales quantised_rmsnorm(const ArrayOfKind& x, const ArrayArgument& weight, float eps,
                                 const std::optional<ArrayArgument>& residual, const std::optional<ArrayOfKind>& out,
                                 const std::optional<ArrayArgument>& residual_out, float weight_offset,
                                 Context* context) {
  const NormCall call("quantised_rmsnorm", x, weight, residual, out, residual_out, true);
  run_rms(call, eps, weight_offset, context);
  return CodesAndScales(nb::make_tuple(call.result.source, call.scales->source));
}

ArrayOfKind fused_layernorm(const ArrayOfKind& x, const ArrayArgument& weight, const std::optional<ArrayArgument>& bias,
                            float eps, const std::optional<ArrayArgument>& residual,
                            const std::optional<ArrayOfKind>& out, const std::optional<ArrayArgument>& residual_out,
                            Context* context) {
  constexpr std::string_view kOp = "fused_layernorm";
  const NormCall call(kOp, x, weight, residual, out, residual_out, false);
  const std::optional<Input> shift = import_input(kOp, "bias", bias);
  {
    const nb::gil_scoped_release released;
    LayerNormOptions options{.eps = eps};
    if (shift) options.bias = shift->view;
    for (std::int64_t i = 0; i < call.matrices->count(); ++i) {
      call.fill(options, i);
      layer_norm(context_or_default(context), call.matrices->at(call.x.view, i), call.weight.view,
                 call.matrices->at(call.result.view, i), options);
    }
  }
  return ArrayOfKind(call.result.source);
}

ArrayOfKind run_norm_linear(const ArrayOfKind& x, const ArrayArgument& norm_weight, const PackedWeights& weights,
                            const std::optional<ArrayArgument>& norm_bias, bool layer_norm, float eps,
                            const std::optional<ArrayArgument>& bias, const std::string& activation,
                            const std::optional<ArrayArgument>& residual, const std::optional<ArrayOfKind>& out,
                            float weight_offset, bool exact, Context* context) {
  constexpr std::string_view kOp = "norm_linear";
  const Input input = import_input(kOp, "x", x), gains = import_input(kOp, "norm_weight", norm_weight);
  std::vector<std::int64_t> shape(input.view.shape().begin(), input.view.shape().end());
  const bool gated = weights.num_gated_outputs() > 0;
  if (!shape.empty()) shape.back() = gated ? weights.num_gated_outputs() : weights.num_outputs();
  const std::optional<Input> shift = import_input(kOp, "norm_bias", norm_bias),
                             biases = import_input(kOp, "bias", bias), added = import_input(kOp, "residual", residual);
  const Output result = output_or_new(kOp, "out", out, input, input.view.dtype(), shape);
  check_same_shape(kOp, "out", result.view, shape);
  if (added) check_same_shape(kOp, "residual", added->view, shape);
  if (gated && (added || biases)) invalid(kOp, "gated weights take neither bias nor residual");
  const Matrices matrices(kOp, "x", input.view.shape(),
                          {input.view, result.view, added ? added->view : ConstTensorView(result.view)});
  RowNorm norm{.kind = layer_norm ? NormKind::layer : NormKind::rms,
               .weight = gains.view,
               .eps = eps,
               .weight_offset = weight_offset};
  if (shift) norm.bias = shift->view;
  LinearOptions options{.activation = activation_from_name(kOp, activation),
                        .arithmetic = exact ? Arithmetic::exact : Arithmetic::fast};
  if (biases) options.bias = biases->view;
  {
    const nb::gil_scoped_release released;
    for (std::int64_t i = 0; i < matrices.count(); ++i) {
      Context& on = context_or_default(context);
      if (gated) {
        gated_linear(on, matrices.at(input.view, i), weights, matrices.at(result.view, i),
                     {.activation = options.activation, .arithmetic = options.arithmetic, .norm = norm});
        continue;
      }
      if (added) options.residual = matrices.at(added->view, i);
      norm_linear(on, matrices.at(input.view, i), norm, weights, matrices.at(result.view, i), options);
    }
  }
  return ArrayOfKind(result.source);
}

}  // namespace

void bind_norm(nb::module_& module) {
  module.def("fused_rmsnorm", &fused_rmsnorm, "x"_a, "weight"_a, "eps"_a.sig("1e-05") = 1e-5f,
             "residual"_a = nb::none(), "out"_a = nb::none(), nb::kw_only(), "residual_out"_a = nb::none(),
             "weight_offset"_a = 0.0f, "context"_a = nb::none(),
             "Root mean square normalisation; see the package's fused_rmsnorm.");
  module.def("quantised_rmsnorm", &quantised_rmsnorm, "x"_a, "weight"_a, "eps"_a.sig("1e-05") = 1e-5f,
             "residual"_a = nb::none(), "out"_a = nb::none(), nb::kw_only(), "residual_out"_a = nb::none(),
             "weight_offset"_a = 0.0f, "context"_a = nb::none(),
             R"(fused_rmsnorm with int8 codes out: (codes, scales), y = scale * code, scale = max|y| / 127 of a row.

scales [...] f32. A row of zeros has scale 0; one with a NaN or an infinity scale NaN and codes 0.)");
  module.def("fused_layernorm", &fused_layernorm, "x"_a, "weight"_a, "bias"_a = nb::none(),
             "eps"_a.sig("1e-05") = 1e-5f, "residual"_a = nb::none(), "out"_a = nb::none(), nb::kw_only(),
             "residual_out"_a = nb::none(), "context"_a = nb::none(),
             R"(Layer normalisation (Ba et al., 2016): (x - mean) / sqrt(variance + eps) * weight + bias.

x [..., hidden] f32, bf16 or f16, last dimension contiguous; weight and bias [hidden] f32 or as x; out
as x, or f32, and may be x itself. One pass over memory, computed in f32, rounded once. residual and
residual_out as for fused_rmsnorm.)");
  module.def("norm_linear", &run_norm_linear, "x"_a, "norm_weight"_a, "weights"_a, "norm_bias"_a = nb::none(),
             nb::kw_only(), "layer_norm"_a = false, "eps"_a.sig("1e-05") = 1e-5f, "bias"_a = nb::none(),
             "activation"_a = "none", "residual"_a = nb::none(), "out"_a = nb::none(), "weight_offset"_a = 0.0f,
             "exact"_a = false, "context"_a = nb::none(),
             R"(linear of normalised rows in one pass over x: activation(norm(x) weights^T + bias) + residual.

The norm is RMSNorm, or LayerNorm with layer_norm, which alone takes norm_bias. Weights of
PackedWeights.gate_up make it gated_linear of normalised rows. The rest is as for linear.)");
}

}  // namespace ops_transformer::python
