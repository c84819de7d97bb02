// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <nanobind/nanobind.h>

#include <algorithm>
#include <list>
#include <memory>
#include <tuple>

#include "ops_transformer/base/validate.h"
#include "ops_transformer/posembedding/rope.h"
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
                   Context* context) {
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
                                .position_scale = position_scale});
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

std::shared_ptr<const RopeTable> table_for(const RopeOptions& options) {
  using Key = std::tuple<std::int64_t, double, RopeStyle, double>;
  static std::list<std::pair<Key, std::shared_ptr<const RopeTable>>> latest_first;
  const Key key(options.rotary_dim, options.theta, options.style, options.position_scale);
  const auto found = std::ranges::find(latest_first, key, [](const auto& entry) { return entry.first; });
  if (found != latest_first.end()) {
    latest_first.splice(latest_first.begin(), latest_first, found);
  } else {
    latest_first.emplace_front(key, std::make_shared<const RopeTable>(options));
    if (latest_first.size() > kMaxTables) latest_first.pop_back();
  }
  return latest_first.front().second;
}

void bind_posembedding(nb::module_& module) {
  module.def("rotary_embedding", &rotate, "q"_a, "positions"_a, "rotary_dim"_a = nb::none(), "theta"_a = 10000.0,
             "interleaved"_a = false, "out"_a = nb::none(), nb::kw_only(), "position_scale"_a = 1.0,
             "context"_a = nb::none(),
             R"(Rotary position embedding (Su et al., 2021), of queries or keys.

q [batch, heads, seq, head_dim] with positions [seq] or [batch, seq], or packed q [tokens, heads,
head_dim] with positions [tokens]; f32, bf16 or f16, last dimension contiguous; positions int32 or
int64, also negative; out as q, and may be q itself. rotary_dim: how many of the leading dimensions
turn (even), the rest is copied; None: all. Pair i turns by position * theta^(-2i / rotary_dim)
radians. Pairs are (i, i + rotary_dim / 2), as in Hugging Face models, or with interleaved (2i,
2i + 1), as in GGUF's llama. Positions are divided by position_scale.)");
}

}  // namespace ops_transformer::python
