// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "ops_transformer/attention/alibi_attention.h"
#include "ops_transformer/attention/flash_attention.h"
#include "ops_transformer/attention/fused_rope_attention.h"
#include "ops_transformer/attention/sparse_mode.h"
#include "ops_transformer/base/validate.h"
#include "python/array.h"
#include "python/attention_layout.h"
#include "python/bindings.h"
#include "python/rope_table.h"

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
using Band = std::pair<std::optional<std::int64_t>, std::optional<std::int64_t>>;
using Offsets = std::optional<std::vector<std::int64_t>>;

void set_window(FlashAttentionOptions& options, const std::optional<Window>& window, const std::optional<Band>& band) {
  if (window && band) invalid(kOp, "window and band are both given, give one of them");
  if (band) {
    options.window_left = band->first.value_or(kNoWindow);
    options.window_right = band->second.value_or(kNoWindow);
  }
  if (!window) return;
  if (const auto* count = std::get_if<std::int64_t>(&*window)) {
    options.window = *count;
    return;
  }
  const auto limit = [](const char* name, std::int64_t side) {
    if (side < -1) invalid(kOp, fmt::format("{} is {}, must be >= 0, or -1 for none", name, side));
    return side == -1 ? kNoWindow : side;
  };
  const auto [left, right] = std::get<1>(*window);
  options.window_left = limit("window_left", left);
  options.window_right = limit("window_right", right);
}

MaskAlign align_of(const std::string& align) {
  if (align != "last" && align != "first") invalid(kOp, fmt::format("align is '{}', must be 'last' or 'first'", align));
  return align == "last" ? MaskAlign::last : MaskAlign::first;
}

/// The tensors of a call by heads, and its result in the layout of the query.
struct Tensors {
  Tensors(std::string_view op, const ArrayOfKind& query, const ArrayArgument& key, const ArrayArgument& value,
          std::optional<std::int64_t> num_heads, const std::optional<std::string>& layout_name,
          const std::optional<ArrayOfKind>& out)
      : q_array(import_input(op, "query", query)),
        k_array(import_input(op, "key", key)),
        v_array(import_input(op, "value", value)),
        layout(layout_of(op, layout_name, num_heads, q_array.view)) {
    q = by_heads(op, "query", q_array.view, layout, num_heads.value_or(0));
    const std::int64_t kv_heads = heads_in(op, "key", k_array.view, layout, q.size(q.rank() - 1));
    k = by_heads(op, "key", k_array.view, layout, kv_heads);
    v = by_heads(op, "value", v_array.view, layout, kv_heads);
    result = output_or_new(op, "out", out, q_array, q.dtype(), out_shape(q, v, layout).span());
    out_by_heads = by_heads(op, "out", result.view, layout, q.size(1));
  }

  Input q_array, k_array, v_array;
  Layout layout;
  ConstTensorView q, k, v;
  Output result;
  TensorView out_by_heads;
};

template <bool kReturnLse>
using AttentionResult = std::conditional_t<kReturnLse, ArrayAndLse, ArrayOfKind>;

template <bool kReturnLse>
AttentionResult<kReturnLse> attend(
    const ArrayOfKind& query, const ArrayArgument& key, const ArrayArgument& value, bool causal,
    std::optional<float> softmax_scale, const std::optional<Window>& window, const std::optional<ArrayOfKind>& out,
    std::optional<std::int64_t> num_heads, const std::optional<std::string>& layout, const std::string& align,
    const std::optional<Band>& band, const Offsets& prefix_lens, const std::optional<ArrayArgument>& visible,
    const std::optional<ArrayArgument>& tree, const std::optional<ArrayArgument>& bias, bool bias_before_scale,
    float logit_soft_cap, const std::vector<float>& alibi_slopes, const std::vector<float>& sinks,
    const std::optional<ArrayArgument>& dropout_mask, std::optional<std::uint64_t> dropout_seed, float keep_prob,
    const Offsets& q_offsets, const Offsets& kv_offsets, const std::optional<ArrayArgument>& k_scales,
    const std::optional<ArrayArgument>& k_offsets, const std::optional<ArrayArgument>& v_scales,
    const std::optional<ArrayArgument>& v_offsets, const std::optional<ArrayArgument>& softmax_max,
    const std::optional<ArrayArgument>& softmax_sum, std::int64_t block_size, std::optional<int> sparse_mode,
    std::int64_t pre_tokens, std::int64_t next_tokens, const std::optional<ArrayArgument>& atten_mask,
    const Literal<kReturnLse>&, Context* context) {
  const Tensors t(kOp, query, key, value, num_heads, layout, out);
  FlashAttentionOptions options{.mask = causal ? Mask::causal : Mask::none,
                                .align = align_of(align),
                                .softmax_scale = softmax_scale,
                                .bias_before_scale = bias_before_scale,
                                .logit_soft_cap = logit_soft_cap,
                                .alibi_slopes = alibi_slopes,
                                .dropout_seed = dropout_seed,
                                .keep_prob = keep_prob,
                                .sinks = sinks,
                                .block_size = block_size};
  set_window(options, window, band);
  if (prefix_lens) options.prefix_lens = *prefix_lens;
  const auto visible_array = import_input(kOp, "visible", visible), tree_array = import_input(kOp, "tree", tree),
             bias_array = import_input(kOp, "bias", bias),
             dropout_array = import_input(kOp, "dropout_mask", dropout_mask);
  if (visible_array) options.visible = visible_array->view;
  if (tree_array) options.tree = tree_array->view;
  if (bias_array) options.bias = bias_array->view;
  if (dropout_array) options.dropout_mask = dropout_array->view;
  const auto ks = import_input(kOp, "k_scales", k_scales), ko = import_input(kOp, "k_offsets", k_offsets),
             vs = import_input(kOp, "v_scales", v_scales), vo = import_input(kOp, "v_offsets", v_offsets);
  if (ks) options.k_scales = ks->view;
  if (ko) options.k_offsets = ko->view;
  if (vs) options.v_scales = vs->view;
  if (vo) options.v_offsets = vo->view;
  std::optional<Output> lse, largest, sums;
  if (kReturnLse) options.lse = lse.emplace(new_array(t.q_array, DType::f32, lse_shape(t.q, t.layout).span())).view;
  if (softmax_max) options.softmax_max = largest.emplace(import_output(kOp, "softmax_max", *softmax_max)).view;
  if (softmax_sum) options.softmax_sum = sums.emplace(import_output(kOp, "softmax_sum", *softmax_sum)).view;
  const bool packed = t.layout == Layout::tnd;
  if (packed != q_offsets.has_value()) {
    invalid(kOp, packed ? "layout TND needs q_offsets" : "q_offsets is given, which only layout TND has");
  }
  if (kv_offsets && !packed) invalid(kOp, "kv_offsets is given, which only layout TND has");
  if (!sparse_mode && (atten_mask || pre_tokens != kAllTokens || next_tokens != kAllTokens)) {
    invalid(kOp, "atten_mask, pre_tokens or next_tokens is given, which sparse_mode gives a meaning");
  }
  const auto mask_array = import_input(kOp, "atten_mask", atten_mask);
  {
    const nb::gil_scoped_release released;
    Context& chosen = context_or_default(context);
    std::optional<SparseModeOptions> sparse;
    if (sparse_mode) {
      SparseMode mode{*sparse_mode, pre_tokens, next_tokens};
      if (mask_array) mode.atten_mask = mask_array->view;
      sparse.emplace("flash_attention", options, mode,
                     packed ? std::span(*q_offsets) : std::span<const std::int64_t>());
    }
    const FlashAttentionOptions& rules = sparse ? sparse->options() : options;
    if (packed) {
      const std::vector<std::int64_t>& keys = kv_offsets ? *kv_offsets : *q_offsets;
      flash_attention_varlen(chosen, t.q, t.k, t.v, t.out_by_heads, *q_offsets, keys, rules);
    } else {
      flash_attention(chosen, t.q, t.k, t.v, t.out_by_heads, rules);
    }
  }
  if constexpr (kReturnLse) {
    return ArrayAndLse(nb::make_tuple(t.result.source, lse->source));
  } else {
    return ArrayOfKind(t.result.source);
  }
}

/// The overload whose return_lse is kReturnLse; it says which result a call gives.
template <bool kReturnLse, class ReturnLse, class... Extra>
void def_flash_attention(nb::module_& module, const ReturnLse& return_lse, const Extra&... extra) {
  module.def("flash_attention", &attend<kReturnLse>, "query"_a, "key"_a, "value"_a, "causal"_a = false,
             "softmax_scale"_a = nb::none(), "window"_a = nb::none(), "out"_a = nb::none(), nb::kw_only(),
             "num_heads"_a = nb::none(), "layout"_a = nb::none(), "align"_a = "last", "band"_a = nb::none(),
             "prefix_lens"_a = nb::none(), "visible"_a = nb::none(), "tree"_a = nb::none(), "bias"_a = nb::none(),
             "bias_before_scale"_a = false, "logit_soft_cap"_a = 0.0f, "alibi_slopes"_a = std::vector<float>(),
             "sinks"_a = std::vector<float>(), "dropout_mask"_a = nb::none(), "dropout_seed"_a = nb::none(),
             "keep_prob"_a = 1.0f, "q_offsets"_a = nb::none(), "kv_offsets"_a = nb::none(), "k_scales"_a = nb::none(),
             "k_offsets"_a = nb::none(), "v_scales"_a = nb::none(), "v_offsets"_a = nb::none(),
             "softmax_max"_a = nb::none(), "softmax_sum"_a = nb::none(), "block_size"_a = 0,
             "sparse_mode"_a = nb::none(), "pre_tokens"_a = kAllTokens, "next_tokens"_a = kAllTokens,
             "atten_mask"_a = nb::none(), return_lse, "context"_a = nb::none(), extra...);
}

}  // namespace

void bind_attention(nb::module_& module) {
  def_flash_attention<false>(module, "return_lse"_a = false,
                             R"(Scaled dot-product attention without a score matrix (Dao et al., 2022).

query [batch, num_q_heads, q_len, head_dim], key [batch, num_kv_heads, kv_len, head_dim], value
[batch, num_kv_heads, kv_len, value_dim], all f32, all bf16 or all f16 (key and value also bf16 under an
f32 query, which is rounded to bf16, or int8), last dimension contiguous; num_q_heads a multiple of
num_kv_heads; out as query (or f32) with value_dim.

layout: BNSD (the above), BSND, BSH, SBH (heads and head_dim in one dimension, needs num_heads) or
TND (all sequences one after another: q_offsets and kv_offsets say where each starts, and where the
last ends). Without it 4 dimensions are BNSD; with num_heads 3 are BSH and 4 BSND.

Query i stands at key position p = i + kv_len - q_len, or at i with align="first". causal: keys up to
p. window: with causal the number of keys seen, the query's own included; or (left, right), how far it
sees to either side, -1: without limit. band: the same, None: without limit, may be negative.
prefix_lens: for each sequence, how many first keys every query sees. visible: booleans, True =
visible, that broadcast to [batch, num_q_heads, q_len, kv_len]. tree: booleans [batch or 1, q_len,
q_len] over the last q_len keys. bias: added to the scores, broadcasts as visible; -inf hides;
bias_before_scale: scale * (q k + bias). logit_soft_cap: cap * tanh(score / cap). alibi_slopes, one a
query head: minus slope * |p - key|. sinks, one a query head: a score that joins the sum without a
value. dropout_mask: uint8 that broadcasts to [batch, num_q_heads, q_len, ceil(kv_len / 8)], bit key % 8 of
byte key / 8 set: the weight is kept, divided by keep_prob. dropout_seed, instead: it is kept where word
key % 4 of Philox4x32-10 at the counter (key // 4, query, query head, sequence), key (seed, seed >> 32),
is under keep_prob * 2**32. For TND visible and bias broadcast to [num_q_heads, total_q, n], tree is
[total_q, n].

k_scales, k_offsets, v_scales, v_offsets: f32, for int8 keys and values, (code + offset) * scale; they
broadcast to [batch, num_kv_heads, kv_len, dim] ([total_kv, num_kv_heads, dim] for TND) whatever the
layout, by token (dim 1) or by channel (batch and kv_len 1).

softmax_scale None: 1 / sqrt(head_dim). A query that sees no key gives 0, and lse -inf. return_lse
adds log(sum(exp(scores))), natural log, [batch, num_q_heads, q_len] ([total_q, num_q_heads] for TND)
f32. softmax_max, softmax_sum: arrays [batch, num_q_heads, q_len, 8] f32 that are written, eight
copies of each row's maximum and sum. block_size: keys of a tile instead of the plan's choice, taken
as a multiple of 16, at most 256; the result is the same but for rounding.

sparse_mode, pre_tokens, next_tokens, atten_mask (anything but 0 = hidden): masks
as Ascend numbers them, instead of causal, window, band, visible and tree. i, j count within a
sequence, d = kv_len - q_len; 0: atten_mask, and with one i - pre <= j <= i + next; 1: atten_mask; 2: j <=
i; 3: j <= i + d; 4: i + d - pre <= j <= i + d + next; 5, 6: 3 and prefix_lens; 7 (TND): 4 for the last
sequence with queries, 3 for the others; 8 (TND): 4 for the first, 2 for the others; 9: atten_mask [batch
or 1, q_len, q_len] (TND: all flat) over the last q_len keys.)");
  def_flash_attention<true>(module, "return_lse"_a);
  module.def(
      "alibi_attention",
      [](const ArrayOfKind& query, const ArrayArgument& key, const ArrayArgument& value,
         std::optional<std::int64_t> num_heads, std::optional<std::int64_t> max_seq_len, bool causal,
         std::optional<float> softmax_scale, const std::optional<std::string>& layout,
         const std::optional<ArrayOfKind>& out, Context* context) {
        constexpr std::string_view kAlibi = "alibi_attention";
        const Tensors t(kAlibi, query, key, value, num_heads, layout, out);
        if (t.layout == Layout::tnd) invalid(kAlibi, "layout is TND, which flash_attention(alibi_slopes=) takes");
        {
          const nb::gil_scoped_release released;
          alibi_attention(context_or_default(context), t.q, t.k, t.v, t.out_by_heads,
                          {.max_seq_len = max_seq_len, .causal = causal, .softmax_scale = softmax_scale});
        }
        return ArrayOfKind(t.result.source);
      },
      "query"_a, "key"_a, "value"_a, "num_heads"_a = nb::none(), "max_seq_len"_a = nb::none(), "causal"_a = false,
      "softmax_scale"_a = nb::none(), nb::kw_only(), "layout"_a = nb::none(), "out"_a = nb::none(),
      "context"_a = nb::none(),
      R"(flash_attention with ALiBi's bias -slope * |i + kv_len - q_len - j| (Press et al., 2022), made in
registers, with the slopes of the paper for any number of heads. max_seq_len: longer queries or keys
are an error. Layouts as flash_attention, but TND.)");
  module.def(
      "fused_rope_attention",
      [](const ArrayOfKind& query, const ArrayArgument& key, const ArrayArgument& value,
         const std::optional<ArrayArgument>& positions, std::optional<std::int64_t> rotary_dim, bool causal,
         std::optional<float> softmax_scale, double theta, bool interleaved, double position_scale,
         const std::optional<AnyScaling>& scaling, const std::optional<ArrayArgument>& rotated_key,
         std::optional<std::int64_t> num_heads, const std::optional<std::string>& layout,
         const std::optional<ArrayOfKind>& out, Context* context) {
        constexpr std::string_view kRope = "fused_rope_attention";
        const Tensors t(kRope, query, key, value, num_heads, layout, out);
        if (t.layout == Layout::tnd) invalid(kRope, "layout is TND, must be BSH, SBH, BSND or BNSD");
        const auto at = import_input(kRope, "positions", positions);
        const auto table = table_for({.rotary_dim = rotary_dim.value_or(t.q.size(3)),
                                      .theta = theta,
                                      .style = interleaved ? RopeStyle::interleaved : RopeStyle::half_split,
                                      .position_scale = position_scale,
                                      .scaling = scaling_of(scaling)});
        FusedRopeAttentionOptions options{.causal = causal, .softmax_scale = softmax_scale};
        if (at) options.positions = at->view;
        std::optional<Output> kept;
        if (rotated_key) {
          kept.emplace(import_output(kRope, "rotated_key", *rotated_key));
          options.rotated_k = by_heads(kRope, "rotated_key", kept->view, t.layout, t.k.size(1));
        }
        {
          const nb::gil_scoped_release released;
          fused_rope_attention(context_or_default(context), t.q, t.k, t.v, *table, t.out_by_heads, options);
        }
        return ArrayOfKind(t.result.source);
      },
      "query"_a, "key"_a, "value"_a, "positions"_a = nb::none(), "rotary_dim"_a = nb::none(), "causal"_a = false,
      "softmax_scale"_a = nb::none(), nb::kw_only(), "theta"_a = 10000.0, "interleaved"_a = false,
      "position_scale"_a = 1.0, "scaling"_a = nb::none(), "rotated_key"_a = nb::none(), "num_heads"_a = nb::none(),
      "layout"_a = nb::none(), "out"_a = nb::none(), "context"_a = nb::none(),
      R"(flash_attention of rotated queries and keys (Su et al., 2021), which are rotated while their tiles are
packed: the rotated tensors never reach memory.

positions [kv_len] or [batch, kv_len], int32 or int64, are the keys'; None: 0, 1, ... Query i has the
position of key i + kv_len - q_len. rotary_dim, theta, interleaved, position_scale and scaling as in
rotary_embedding; layouts as flash_attention, but TND. rotated_key: an array of key's shape, f32, bf16 or
f16, into which the rotated keys are written in the same pass, as a cache keeps them.)");
}

}  // namespace ops_transformer::python
