// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>

#include <algorithm>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <variant>

#include "ops_transformer/base/validate.h"
#include "ops_transformer/posembedding/rope.h"
#include "ops_transformer/posembedding/rotary_mul.h"
#include "python/array.h"
#include "python/bindings.h"
#include "python/rope_table.h"

namespace ops_transformer::python {
namespace {

using namespace nb::literals;

constexpr std::string_view kOp = "rotary_embedding";
constexpr std::size_t kMaxTables = 8;

/// The tokens of one sequence of [batch, heads, seq, head_dim] as [seq, heads, head_dim].
template <class View>
View tokens_of(const View& view, std::int64_t sequence) {
  const std::int64_t offset = sequence * view.stride(0) * std::int64_t(element_bytes(view.dtype()));
  return View(view.template as<std::byte>() + offset, view.dtype(), {view.size(2), view.size(1), view.size(3)},
              {view.stride(2), view.stride(1), view.stride(3)});
}

/// Every sequence has one token: [batch, heads, 1, head_dim] as [batch, heads, head_dim].
template <class View>
View single_tokens(const View& view) {
  return View(view.data(), view.dtype(), {view.size(0), view.size(1), view.size(3)},
              {view.stride(0), view.stride(1), view.stride(3)});
}

ConstTensorView positions_of(const ConstTensorView& positions, std::int64_t sequence) {
  if (positions.rank() == 1) return positions;
  const std::int64_t offset = sequence * positions.stride(0) * std::int64_t(element_bytes(positions.dtype()));
  return {positions.as<std::byte>() + offset, positions.dtype(), {positions.size(1)}, {positions.stride(1)}};
}

ArrayOfKind rotate(const ArrayOfKind& q, const ArrayArgument& positions, std::optional<std::int64_t> rotary_dim,
                   double theta, bool interleaved, const std::optional<ArrayOfKind>& out, double position_scale,
                   const std::optional<AnyScaling>& scaling, Context* context) {
  const Input x = import_input(kOp, "q", q), at = import_input(kOp, "positions", positions);
  const auto shape = x.view.shape();
  if (shape.size() != 3 && shape.size() != 4) {
    invalid(kOp, fmt::format("q must be [batch, heads, seq, head_dim] or [tokens, heads, head_dim], got {}",
                             describe(x.view)));
  }
  const bool batched = shape.size() == 4;
  if (batched && at.view.rank() == 2) {
    check_shape(kOp, "positions", at.view, {shape[0], shape[2]});
  } else {
    check_shape(kOp, "positions", at.view, {batched ? shape[2] : shape[0]});
  }
  const auto table = table_for({.rotary_dim = rotary_dim.value_or(shape.back()),
                                .theta = theta,
                                .style = interleaved ? RopeStyle::interleaved : RopeStyle::half_split,
                                .position_scale = position_scale,
                                .scaling = scaling_of(scaling)});
  const Output result = output_or_new(kOp, "out", out, x, x.view.dtype(), shape);
  check_same_shape(kOp, "out", result.view, shape);
  Context& on = context_or_default(context);
  {
    const nb::gil_scoped_release released;
    if (!batched) {
      rotary_embedding(on, x.view, at.view, *table, result.view);
    } else if (shape[2] == 1 && at.view.rank() == 2) {
      const ConstTensorView each(at.view.data(), at.view.dtype(), {shape[0]}, {at.view.stride(0)});
      rotary_embedding(on, single_tokens(x.view), each, *table, single_tokens(result.view));
    } else {
      for (std::int64_t b = 0; b < shape[0]; ++b) {
        rotary_embedding(on, tokens_of(x.view, b), positions_of(at.view, b), *table, tokens_of(result.view, b));
      }
    }
  }
  return ArrayOfKind(result.source);
}

}  // namespace

RopeScaling scaling_of(const std::optional<AnyScaling>& scaling) {
  if (!scaling) return std::monostate();
  return std::visit([](const auto& one) { return RopeScaling(one); }, *scaling);
}

std::shared_ptr<const RopeTable> table_for(const RopeOptions& options) {
  using Key = std::tuple<std::int64_t, double, RopeStyle, double, RopeScaling>;
  static std::list<std::pair<Key, std::shared_ptr<const RopeTable>>> latest_first;
  const Key key(options.rotary_dim, options.theta, options.style, options.position_scale, options.scaling);
  const auto found = std::ranges::find(latest_first, key, [](const auto& entry) { return entry.first; });
  if (found != latest_first.end()) {
    latest_first.splice(latest_first.begin(), latest_first, found);
  } else {
    latest_first.emplace_front(key, std::make_shared<const RopeTable>(options));
    if (latest_first.size() > kMaxTables) latest_first.pop_back();
  }
  return latest_first.front().second;
}

namespace {

void bind_scalings(nb::module_& module) {
  nb::class_<NtkScaling>(module, "NtkScaling",
                         "NTK-aware RoPE scaling: theta becomes theta * factor^(d / (d - 2)), d = rotary_dim.")
      .def(
          "__init__", [](NtkScaling* self, double factor) { new (self) NtkScaling{factor}; }, "factor"_a)
      .def_ro("factor", &NtkScaling::factor);
  nb::class_<Llama3Scaling>(module, "Llama3Scaling",
                            R"(Llama 3.1's RoPE scaling: slow pairs turn factor times slower.

Slow: fewer than low_frequency_factor turns in the original context; pairs of more than
high_frequency_factor turns stay as they are, those between are a blend.)")
      .def(
          "__init__",
          [](Llama3Scaling* self, double factor, double low, double high, std::int64_t original_context_len) {
            new (self) Llama3Scaling{factor, low, high, original_context_len};
          },
          "factor"_a = 8.0, "low_frequency_factor"_a = 1.0, "high_frequency_factor"_a = 4.0,
          "original_context_len"_a = 8192)
      .def_ro("factor", &Llama3Scaling::factor)
      .def_ro("low_frequency_factor", &Llama3Scaling::low_frequency_factor)
      .def_ro("high_frequency_factor", &Llama3Scaling::high_frequency_factor)
      .def_ro("original_context_len", &Llama3Scaling::original_context_len);
  nb::class_<YarnScaling>(module, "YarnScaling",
                          R"(YaRN (Peng et al., 2023): pairs by their turns in the original context.

At least beta_fast turns: as they are; beta_slow or fewer: factor times slower; a blend between.
cos and sin are multiplied by attention_factor; None: 0.1 ln(factor) + 1.)")
      .def(
          "__init__",
          [](YarnScaling* self, double factor, std::int64_t original_context_len, double beta_fast, double beta_slow,
             std::optional<double> attention_factor) {
            new (self) YarnScaling{factor, original_context_len, beta_fast, beta_slow, attention_factor};
          },
          "factor"_a, "original_context_len"_a, "beta_fast"_a = 32.0, "beta_slow"_a = 1.0,
          "attention_factor"_a = nb::none())
      .def_ro("factor", &YarnScaling::factor)
      .def_ro("original_context_len", &YarnScaling::original_context_len)
      .def_ro("beta_fast", &YarnScaling::beta_fast)
      .def_ro("beta_slow", &YarnScaling::beta_slow)
      .def_ro("attention_factor", &YarnScaling::attention_factor);
}

RotaryMode mode_of(const std::string& name) {
  constexpr std::pair<std::string_view, RotaryMode> kModes[] = {{"half", RotaryMode::half},
                                                                {"interleave", RotaryMode::interleave},
                                                                {"quarter", RotaryMode::quarter},
                                                                {"interleave_half", RotaryMode::interleave_half}};
  for (const auto& [known, mode] : kModes) {
    if (known == name) return mode;
  }
  invalid("rotary_mul",
          fmt::format("mode is '{}', must be 'half', 'interleave', 'quarter' or 'interleave_half'", name));
}

/// [..., n] of up to four dimensions with ones before it.
template <class View>
View as_four(std::string_view name, const View& view) {
  const int rank = view.rank();
  if (rank < 1 || rank > 4) invalid("rotary_mul", fmt::format("{} must have 1 to 4 dimensions, got {}", name, rank));
  std::int64_t shape[4] = {1, 1, 1, 1}, strides[4] = {};
  for (int i = 0; i < rank; ++i) {
    shape[4 - rank + i] = view.size(i);
    strides[4 - rank + i] = view.stride(i);
  }
  // A dimension of one element may have any stride; make it the reach of those after it, so that none overlap.
  for (int i = 2; i >= 0; --i) {
    if (shape[i] == 1) strides[i] = shape[i + 1] * strides[i + 1];
  }
  return View(view.data(), view.dtype(), std::span<const std::int64_t>(shape), std::span<const std::int64_t>(strides));
}

ArrayOfKind run_rotary_mul(const ArrayOfKind& x, const ArrayArgument& cos, const ArrayArgument& sin,
                           const std::string& mode, const std::optional<ArrayArgument>& rotated,
                           const std::optional<ArrayOfKind>& out, Context* context) {
  constexpr std::string_view kMul = "rotary_mul";
  const Input input = import_input(kMul, "x", x), cosines = import_input(kMul, "cos", cos),
              sines = import_input(kMul, "sin", sin);
  const std::optional<Input> turned = import_input(kMul, "rotated", rotated);
  const Output result = output_or_new(kMul, "out", out, input, input.view.dtype(), input.view.shape());
  check_same_shape(kMul, "out", result.view, input.view.shape());
  std::optional<ConstTensorView> turned_view;
  if (turned) turned_view = as_four("rotated", turned->view);
  const ConstTensorView four = as_four("x", input.view), cos_four = as_four("cos", cosines.view),
                        sin_four = as_four("sin", sines.view);
  const TensorView out_four = as_four("out", result.view);
  const RotaryMode rotation = mode_of(mode);
  {
    const nb::gil_scoped_release released;
    rotary_mul(context_or_default(context), four, cos_four, sin_four, rotation, out_four, turned_view);
  }
  return ArrayOfKind(result.source);
}

}  // namespace

void bind_posembedding(nb::module_& module) {
  bind_scalings(module);
  module.def("rotary_mul", &run_rotary_mul, "x"_a, "cos"_a, "sin"_a, "mode"_a = "half", "rotated"_a = nb::none(),
             "out"_a = nb::none(), nb::kw_only(), "context"_a = nb::none(),
             R"(Rotation by the caller's own factors, one for each element: x * cos + rot(x) * sin.

x of up to four dimensions, f32, bf16 or f16, last dimension contiguous; cos and sin f32 or as x,
dimensions of size 1 broadcast, and their last one may be shorter: the rest of x is copied. rot(x) by
mode: 'half' (-x2, x1); 'interleave' pairs (-x[2i+1], x[2i]); 'quarter' (-x2, x1, -x4, x3);
'interleave_half' (y = evens then odds) * cos + (-y2, y1) * sin; or rotated, where the caller has it.
out as x, and may be x itself.)");
  module.def("rotary_embedding", &rotate, "q"_a, "positions"_a, "rotary_dim"_a = nb::none(), "theta"_a = 10000.0,
             "interleaved"_a = false, "out"_a = nb::none(), nb::kw_only(), "position_scale"_a = 1.0,
             "scaling"_a = nb::none(), "context"_a = nb::none(),
             R"(Rotary position embedding (Su et al., 2021), of queries or keys.

q [batch, heads, seq, head_dim] with positions [seq] or [batch, seq], or packed q [tokens, heads,
head_dim] with positions [tokens]; f32, bf16 or f16, last dimension contiguous; positions int32 or
int64, also negative; out as q, and may be q itself. rotary_dim: how many of the leading dimensions
turn (even), the rest is copied; None: all. Pair i turns by position * theta^(-2i / rotary_dim)
radians. Pairs are (i, i + rotary_dim / 2), as in Hugging Face models, or with interleaved (2i,
2i + 1), as in GGUF's llama. Positions are divided by position_scale (linear scaling); scaling is an
NtkScaling, Llama3Scaling or YarnScaling.)");
}

}  // namespace ops_transformer::python
