// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <vector>

#include "ops_transformer/attention/flash_attention.h"
#include "ops_transformer/base/validate.h"
#include "python/array.h"
#include "python/bindings.h"

namespace ops_transformer::python {
namespace {

using namespace nb::literals;

constexpr std::string_view kOp = "flash_attention_paged";

ArrayOfKind attend(const ArrayOfKind& query, const ArrayArgument& key_pages, const ArrayArgument& value_pages,
                   const ArrayArgument& page_table, const ArrayArgument& kv_lens,
                   const std::optional<std::vector<std::int64_t>>& q_offsets, bool causal,
                   std::optional<float> softmax_scale, std::optional<std::int64_t> window, float logit_soft_cap,
                   const std::vector<float>& alibi_slopes, const std::vector<float>& sinks,
                   const std::optional<ArrayArgument>& tree, const std::optional<ArrayArgument>& k_scales,
                   const std::optional<ArrayArgument>& k_offsets, const std::optional<ArrayArgument>& v_scales,
                   const std::optional<ArrayArgument>& v_offsets, const std::optional<ArrayOfKind>& out,
                   const std::optional<ArrayOfKind>& lse, Context* context) {
  const Input q = import_input(kOp, "query", query), k = import_input(kOp, "key_pages", key_pages),
              v = import_input(kOp, "value_pages", value_pages), table = import_input(kOp, "page_table", page_table),
              lens = import_input(kOp, "kv_lens", kv_lens);
  const PagedKvView view = PagedKvView::from_arrays(k.view, v.view, table.view, lens.view);
  check_rank(kOp, "query", q.view, 3);
  FlashAttentionOptions options{.mask = causal ? Mask::causal : Mask::none,
                                .softmax_scale = softmax_scale,
                                .window = window.value_or(kNoWindow),
                                .logit_soft_cap = logit_soft_cap,
                                .alibi_slopes = alibi_slopes,
                                .sinks = sinks};
  const auto tree_array = import_input(kOp, "tree", tree), ks = import_input(kOp, "k_scales", k_scales),
             ko = import_input(kOp, "k_offsets", k_offsets), vs = import_input(kOp, "v_scales", v_scales),
             vo = import_input(kOp, "v_offsets", v_offsets);
  if (tree_array) options.tree = tree_array->view;
  if (ks) options.k_scales = ks->view;
  if (ko) options.k_offsets = ko->view;
  if (vs) options.v_scales = vs->view;
  if (vo) options.v_offsets = vo->view;
  const std::vector<std::int64_t> shape = {q.view.size(0), q.view.size(1), v.view.size(3)};
  const Output result = output_or_new(kOp, "out", out, q, q.view.dtype(), shape);
  std::optional<Output> sums;
  if (lse) options.lse = sums.emplace(import_output(kOp, "lse", *lse)).view;
  std::vector<std::int64_t> offsets;
  if (q_offsets) {
    offsets = *q_offsets;
  } else {
    for (std::int64_t b = 0; b <= table.view.size(0); ++b) offsets.push_back(b);
  }
  {
    const nb::gil_scoped_release released;
    flash_attention_paged(context_or_default(context), q.view, view, result.view, offsets, options);
  }
  return ArrayOfKind(result.source);
}

}  // namespace

void bind_attention_paged(nb::module_& module) {
  module.def("flash_attention_paged", &attend, "query"_a, "key_pages"_a, "value_pages"_a, "page_table"_a, "kv_lens"_a,
             "q_offsets"_a = nb::none(), nb::kw_only(), "causal"_a = false, "softmax_scale"_a = nb::none(),
             "window"_a = nb::none(), "logit_soft_cap"_a = 0.0f, "alibi_slopes"_a = std::vector<float>(),
             "sinks"_a = std::vector<float>(), "tree"_a = nb::none(), "k_scales"_a = nb::none(),
             "k_offsets"_a = nb::none(), "v_scales"_a = nb::none(), "v_offsets"_a = nb::none(), "out"_a = nb::none(),
             "lse"_a = nb::none(), "context"_a = nb::none(),
             R"(flash_attention over keys and values in pages (Kwon et al., 2023), prefill and decode in one launch.

query [total_q, num_q_heads, head_dim]: sequence b has rows q_offsets[b] to q_offsets[b + 1]; q_offsets
None: one row each. key_pages [num_pages, num_kv_heads, page_size, head_dim], value_pages the same with
value_dim; f32, bf16, f16 (dtype of query, or query f32) or int8 with k_scales and v_scales, which
broadcast to the pages as in flash_attention. page_table [batch, max_pages] int32: key t of a sequence
lies in page page_table[b, t // page_size], row t % page_size; entries past the last needed one are not
read. kv_lens [batch], int32 or int64. tree [total_q, n]. lse: an array [total_q, num_q_heads] f32 that
is written. First pages that neighbouring
sequences share are read once for all of them (not in deterministic contexts).)");
}

}  // namespace ops_transformer::python
