// SPDX-License-Identifier: Apache-2.0
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/variant.h>

#include <array>
#include <cstdint>
#include <utility>
#include <variant>

#include "ops_transformer/attention/flash_attention.h"
#include "ops_transformer/base/validate.h"
#include "python/array.h"
#include "python/bindings.h"

namespace ops_transformer::python {
namespace {

using namespace nb::literals;

constexpr std::string_view kOp = "flash_attention";

/// A bool whose value is part of the signature: the stubs tell which result a call gives.
template <bool kValue>
class Literal : public nb::object {
 public:
  using nb::object::object;
  static constexpr auto Name = nb::detail::const_name<kValue>("typing.Literal[True]", "typing.Literal[False]");
  static bool check_(nb::handle object) { return object.ptr() == (kValue ? Py_True : Py_False); }
};

class ArrayAndLse : public nb::object {
 public:
  using nb::object::object;
  explicit ArrayAndLse(nb::object pair) : nb::object(std::move(pair)) {}
  static constexpr auto Name = nb::detail::const_name("tuple[ArrayT, ArrayT]");
};

using Window = std::variant<std::int64_t, std::pair<std::int64_t, std::int64_t>>;

void set_window(FlashAttentionOptions& options, const Window& window) {
  if (const auto* count = std::get_if<std::int64_t>(&window)) {
    options.window = *count;
    return;
  }
  const auto [left, right] = std::get<1>(window);
  options.window_left = left == -1 ? kNoWindow : left;
  options.window_right = right == -1 ? kNoWindow : right;
}

std::pair<Output, std::optional<Output>> attend(const ArrayOfKind& query, const ArrayArgument& key,
                                                const ArrayArgument& value, bool causal,
                                                std::optional<float> softmax_scale, const std::optional<Window>& window,
                                                bool return_lse, const std::optional<ArrayOfKind>& out,
                                                Context* context) {
  const Input q = import_input(kOp, "query", query), k = import_input(kOp, "key", key),
              v = import_input(kOp, "value", value);
  check_rank(kOp, "query", q.view, 4);
  check_rank(kOp, "value", v.view, 4);
  const std::array<std::int64_t, 4> shape{q.view.size(0), q.view.size(1), q.view.size(2), v.view.size(3)};
  const Output result = output_or_new(kOp, "out", out, q, q.view.dtype(), shape);
  FlashAttentionOptions options{.mask = causal ? Mask::causal : Mask::none, .softmax_scale = softmax_scale};
  if (window) set_window(options, *window);
  std::optional<Output> lse;
  if (return_lse) {
    lse = new_array(q, DType::f32, std::span(shape).first(3));
    options.lse = lse->view;
  }
  {
    const nb::gil_scoped_release released;
    flash_attention(context_or_default(context), q.view, k.view, v.view, result.view, options);
  }
  return {result, lse};
}

}  // namespace

void bind_attention(nb::module_& module) {
  module.def(
      "flash_attention",
      [](const ArrayOfKind& query, const ArrayArgument& key, const ArrayArgument& value, bool causal,
         std::optional<float> softmax_scale, const std::optional<Window>& window, const std::optional<ArrayOfKind>& out,
         const Literal<false>&, Context* context) {
        return ArrayOfKind(attend(query, key, value, causal, softmax_scale, window, false, out, context).first.source);
      },
      "query"_a, "key"_a, "value"_a, "causal"_a = false, "softmax_scale"_a = nb::none(), "window"_a = nb::none(),
      "out"_a = nb::none(), nb::kw_only(), "return_lse"_a = false, "context"_a = nb::none(),
      R"(Scaled dot-product attention without a score matrix (Dao et al., 2022).

query [batch, num_q_heads, q_len, head_dim], key [batch, num_kv_heads, kv_len, head_dim], value
[batch, num_kv_heads, kv_len, value_dim], all f32, all bf16 or all f16, last dimension contiguous;
num_q_heads a multiple of num_kv_heads; out [batch, num_q_heads, q_len, value_dim] as query, or f32.
Queries stand at the end of the keys: query i at key position i + kv_len - q_len. causal: keys up to
it. softmax_scale None: 1 / sqrt(head_dim). window: with causal the number of keys seen, the query's
own included; or (left, right), how far it sees to either side, -1: without limit. A query that sees
no key gives 0, and lse -inf. return_lse adds log(sum(exp(scaled scores))), natural log,
[batch, num_q_heads, q_len] f32.)");
  module.def(
      "flash_attention",
      [](const ArrayOfKind& query, const ArrayArgument& key, const ArrayArgument& value, bool causal,
         std::optional<float> softmax_scale, const std::optional<Window>& window, const std::optional<ArrayOfKind>& out,
         const Literal<true>&, Context* context) {
        const auto [result, lse] = attend(query, key, value, causal, softmax_scale, window, true, out, context);
        return ArrayAndLse(nb::make_tuple(result.source, lse->source));
      },
      "query"_a, "key"_a, "value"_a, "causal"_a = false, "softmax_scale"_a = nb::none(), "window"_a = nb::none(),
      "out"_a = nb::none(), nb::kw_only(), "return_lse"_a, "context"_a = nb::none());
}

}  // namespace ops_transformer::python
