// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/posembedding/sin_cos_cache.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ops_transformer/base/validate.h"
#include "python/array.h"
#include "python/bindings.h"

namespace ops_transformer::python {
namespace {

using namespace nb::literals;

constexpr std::string_view kOp = "rope_with_sin_cos_cache";

class QueriesAndKeys : public nb::object {
 public:
  using nb::object::object;
  explicit QueriesAndKeys(nb::object pair) : nb::object(std::move(pair)) {}
  static constexpr auto Name = nb::detail::const_name("tuple[ArrayT, ArrayT]");
};

/// [tokens, heads * head_dim] or [tokens, heads, head_dim] as heads.
template <class View>
View as_heads(std::string_view name, const View& view, std::int64_t head_dim) {
  if (view.rank() == 3) return view;
  check_rank(kOp, name, view, 2);
  if (head_dim < 1 || view.size(1) % head_dim != 0) {
    invalid(kOp, std::string(name) + " has rows that are no whole number of heads of head_dim");
  }
  check_rows(kOp, name, view);
  return View(view.data(), view.dtype(), {view.size(0), view.size(1) / head_dim, head_dim},
              {view.stride(0), head_dim, 1});
}

QueriesAndKeys run(const ArrayArgument& positions, const ArrayOfKind& q, const ArrayOfKind& k,
                   const ArrayArgument& cos_sin_cache, std::int64_t head_dim, bool interleaved,
                   const std::optional<std::vector<std::int64_t>>& sections, bool interleaved_sections,
                   const std::optional<ArrayOfKind>& q_out, const std::optional<ArrayOfKind>& k_out, Context* context) {
  const Input at = import_input(kOp, "positions", positions), queries = import_input(kOp, "q", q),
              keys = import_input(kOp, "k", k), cache = import_input(kOp, "cos_sin_cache", cos_sin_cache);
  const Output rotated_q = output_or_new(kOp, "q_out", q_out, queries, queries.view.dtype(), queries.view.shape()),
               rotated_k = output_or_new(kOp, "k_out", k_out, keys, keys.view.dtype(), keys.view.shape());
  check_same_shape(kOp, "q_out", rotated_q.view, queries.view.shape());
  check_same_shape(kOp, "k_out", rotated_k.view, keys.view.shape());
  SinCosCacheOptions options{.style = interleaved ? RopeStyle::interleaved : RopeStyle::half_split,
                             .interleaved_sections = interleaved_sections};
  if (sections) options.sections = *sections;
  const ConstTensorView q_heads = as_heads("q", queries.view, head_dim), k_heads = as_heads("k", keys.view, head_dim);
  const TensorView q_to = as_heads("q_out", rotated_q.view, head_dim),
                   k_to = as_heads("k_out", rotated_k.view, head_dim);
  {
    const nb::gil_scoped_release released;
    rope_with_sin_cos_cache(context_or_default(context), at.view, cache.view, q_heads, q_to, k_heads, k_to, options);
  }
  return QueriesAndKeys(nb::make_tuple(rotated_q.source, rotated_k.source));
}

}  // namespace

void bind_sin_cos_cache(nb::module_& module) {
  module.def("rope_with_sin_cos_cache", &run, "positions"_a, "q"_a, "k"_a, "cos_sin_cache"_a, "head_dim"_a,
             "interleaved"_a = false, "sections"_a = nb::none(), "interleaved_sections"_a = false, nb::kw_only(),
             "q_out"_a = nb::none(), "k_out"_a = nb::none(), "context"_a = nb::none(),
             R"(Rotary embedding of queries and keys by a cache of angles: (q, k).

positions [tokens] int32 or int64; cos_sin_cache [length, rotary_dim], a row holding the cosines of all
pairs, then the sines; q and k [tokens, heads * head_dim] or [tokens, heads, head_dim]; f32, bf16 or f16.
Pairs as for rotary_embedding. sections (Qwen2-VL's multimodal RoPE): positions [sections, tokens], and
how many pairs turn by each of its rows, one section after another or in turn. q_out may be q, k_out k.)");
}

}  // namespace ops_transformer::python
