// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/attention/attention_update.h"

#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <utility>
#include <vector>

#include "ops_transformer/base/validate.h"
#include "python/array.h"
#include "python/attention_layout.h"
#include "python/bindings.h"

namespace ops_transformer::python {
namespace {

using namespace nb::literals;

class TwoArrays : public nb::object {
 public:
  using nb::object::object;
  explicit TwoArrays(nb::object pair) : nb::object(std::move(pair)) {}
  static constexpr auto Name = nb::detail::const_name("tuple[ArrayT, ArrayT]");
};
class ThreeArrays : public nb::object {
 public:
  using nb::object::object;
  explicit ThreeArrays(nb::object triple) : nb::object(std::move(triple)) {}
  static constexpr auto Name = nb::detail::const_name("tuple[ArrayT, ArrayT, ArrayT]");
};

TwoArrays merge(const std::vector<ArrayArgument>& lse, const std::vector<ArrayOfKind>& local_out,
                const std::optional<ArrayOfKind>& out, Context* context) {
  constexpr std::string_view kOp = "attention_update";
  if (local_out.empty()) invalid(kOp, "local_out is empty, must hold at least one result");
  if (lse.size() != local_out.size()) {
    invalid(kOp, fmt::format("lse has {} entries, local_out has {}", lse.size(), local_out.size()));
  }
  std::vector<Input> outs, sums;
  std::vector<AttentionPartial> parts;
  for (std::size_t p = 0; p < lse.size(); ++p) {
    outs.push_back(import_input(kOp, fmt::format("local_out[{}]", p), local_out[p]));
    sums.push_back(import_input(kOp, fmt::format("lse[{}]", p), lse[p]));
    parts.push_back({outs.back().view, sums.back().view});
  }
  const ConstTensorView& first = outs[0].view;
  const Output result = output_or_new(kOp, "out", out, outs[0], first.dtype(), first.shape());
  const Output merged = new_array(outs[0], DType::f32, sums[0].view.shape());
  {
    const nb::gil_scoped_release released;
    attention_update(context_or_default(context), parts, result.view, merged.view);
  }
  return TwoArrays(nb::make_tuple(result.source, merged.source));
}

// What the sums of a layout look like: [batch, heads, tokens, 8], or [tokens, heads, 8] for TND.
ThreeArrays ring(const ArrayOfKind& prev_attn_out, const ArrayArgument& prev_softmax_max,
                 const ArrayArgument& prev_softmax_sum, const ArrayArgument& cur_attn_out,
                 const ArrayArgument& cur_softmax_max, const ArrayArgument& cur_softmax_sum, const std::string& layout,
                 const std::optional<ArrayOfKind>& out, Context* context) {
  constexpr std::string_view kOp = "ring_attention_update";
  const Input prev = import_input(kOp, "prev_attn_out", prev_attn_out),
              cur = import_input(kOp, "cur_attn_out", cur_attn_out),
              prev_max = import_input(kOp, "prev_softmax_max", prev_softmax_max),
              prev_sum = import_input(kOp, "prev_softmax_sum", prev_softmax_sum),
              cur_max = import_input(kOp, "cur_softmax_max", cur_softmax_max),
              cur_sum = import_input(kOp, "cur_softmax_sum", cur_softmax_sum);
  if (prev_max.view.rank() < 2) {
    invalid(kOp, fmt::format("prev_softmax_max must be [batch, heads, tokens, 8] or [tokens, heads, 8], got {}",
                             describe(prev_max.view)));
  }
  const std::int64_t heads = prev_max.view.size(1);
  const bool joined = layout == "BSH" || layout == "SBH" || layout == "BSND";
  const Layout chosen = layout_of(kOp, layout, joined ? std::optional(heads) : std::nullopt, prev.view);
  const Output result = output_or_new(kOp, "out", out, prev, prev.view.dtype(), prev.view.shape());
  const Output max = new_array(prev, DType::f32, prev_max.view.shape()),
               sum = new_array(prev, DType::f32, prev_max.view.shape());
  const RingAttentionPartial parts[2] = {
      {by_heads(kOp, "prev_attn_out", prev.view, chosen, heads), prev_max.view, prev_sum.view},
      {by_heads(kOp, "cur_attn_out", cur.view, chosen, heads), cur_max.view, cur_sum.view}};
  const TensorView out_by_heads = by_heads(kOp, "out", result.view, chosen, heads);
  {
    const nb::gil_scoped_release released;
    ring_attention_update(context_or_default(context), parts, out_by_heads, max.view, sum.view);
  }
  return ThreeArrays(nb::make_tuple(result.source, max.source, sum.source));
}

}  // namespace

void bind_attention_update(nb::module_& module) {
  module.def("attention_update", &merge, "lse"_a, "local_out"_a, nb::kw_only(), "out"_a = nb::none(),
             "context"_a = nb::none(),
             R"(Attention over all keys from its results over disjoint parts of them, any number of parts.

lse: for each part log(sum(exp(scores))), natural log, f32, of one to three dimensions, such as
[batch, num_q_heads, q_len]. local_out: for each part the result, with one dimension more, f32, bf16 or
f16. Gives out, as local_out, and lse of all parts together. A part with lse -inf (or +inf) saw no key,
and its result is not read; where no part saw one, out is 0 and lse -inf.)");
  module.def("ring_attention_update", &ring, "prev_attn_out"_a, "prev_softmax_max"_a, "prev_softmax_sum"_a,
             "cur_attn_out"_a, "cur_softmax_max"_a, "cur_softmax_sum"_a, nb::kw_only(), "layout"_a = "SBH",
             "out"_a = nb::none(), "context"_a = nb::none(),
             R"(The same for two parts with their softmax maximum and sum, a step of ring attention.

layout: of the results, SBH, BSH, BSND, BNSD or TND. softmax_max and softmax_sum are [batch, num_heads,
tokens, 8] ([tokens, num_heads, 8] for TND) f32, eight copies. Gives out, maximum and sum of both parts. A part
whose sum is 0 or the largest float, or whose maximum is -inf, saw no key.)");
}

}  // namespace ops_transformer::python
