// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/attention/attention_call.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "ops_transformer/attention/attention_codes.h"
#include "ops_transformer/base/validate.h"

namespace ops_transformer {
namespace {

constexpr double kLog2E = 1.4426950408889634;

void check_tensor(const AttentionCall& call, const char* name, const ConstTensorView& view, const AttentionAxes& axes,
                  std::int64_t batch, std::int64_t heads, std::int64_t tokens, std::int64_t dim) {
  if (axes.batched) {
    check_shape(call.op, name, view, {batch, heads, tokens, dim});
  } else {
    check_shape(call.op, name, view, {tokens, heads, dim});
  }
}

// The sums of a row: lse, and maximum and sum in eight copies.
struct NamedOutput {
  const char* name;
  const std::optional<TensorView>& view;
  bool eight;
};

std::array<NamedOutput, 3> sums_of(const FlashAttentionOptions& options) {
  return {{{"lse", options.lse, false},
           {"softmax_max", options.softmax_max, true},
           {"softmax_sum", options.softmax_sum, true}}};
}

void check_sums(const AttentionCall& call) {
  const std::int64_t batch = call.q_axes.batched ? call.q.size(0) : -1, heads = call.num_q_heads(),
                     tokens = call.q.size(call.q_axes.token);
  for (const NamedOutput& sums : sums_of(call.options)) {
    if (!sums.view) continue;
    if (sums.eight) {
      check_tensor(call, sums.name, *sums.view, call.q_axes, batch, heads, tokens, 8);
      check_rows(call.op, sums.name, *sums.view);
    } else if (call.q_axes.batched) {
      check_shape(call.op, sums.name, *sums.view, {batch, heads, tokens});
    } else {
      check_shape(call.op, sums.name, *sums.view, {tokens, heads});
    }
    check_dtype(call.op, sums.name, *sums.view, {DType::f32});
  }
}

// The outputs overlap neither each other nor an input, and each of their elements has its own place.
void check_outputs(const AttentionCall& call) {
  const FlashAttentionOptions& options = call.options;
  std::array<std::pair<const char*, const ConstTensorView*>, 11> inputs{
      {{"q", &call.q}, {call.kv_axes.batched != call.q_axes.batched ? "k pages" : "k", &call.k}, {"v", &call.v}}};
  std::size_t num_inputs = 3;
  for (const auto& [name, view] : {std::pair{"bias", &options.bias},
                                   {"visible", &options.visible},
                                   {"dropout_mask", &options.dropout_mask},
                                   {"tree", &options.tree},
                                   {"k_scales", &options.k_scales},
                                   {"k_offsets", &options.k_offsets},
                                   {"v_scales", &options.v_scales},
                                   {"v_offsets", &options.v_offsets}}) {
    if (*view) inputs[num_inputs++] = {name, &**view};
  }
  std::array<std::pair<const char*, ConstTensorView>, 4> outputs{{{"out", call.out}}};
  std::size_t num_outputs = 1;
  for (const NamedOutput& sums : sums_of(options)) {
    if (sums.view) outputs[num_outputs++] = {sums.name, *sums.view};
  }
  for (std::size_t o = 0; o < num_outputs; ++o) {
    const auto& [name, view] = outputs[o];
    check_output(call.op, name, view);
    for (std::size_t i = 0; i < num_inputs; ++i)
      check_no_overlap(call.op, name, view, inputs[i].first, *inputs[i].second);
    for (std::size_t other = 0; other < o; ++other) {
      check_no_overlap(call.op, name, view, outputs[other].first, outputs[other].second);
    }
  }
}

void check_heads(const char* op, std::int64_t num_q_heads, std::int64_t num_kv_heads) {
  check_at_most(op, "num_q_heads", num_q_heads, kMaxAttentionHeads);
  check_at_most(op, "num_kv_heads", num_kv_heads, kMaxAttentionHeads);
  if (num_kv_heads == 0 ? num_q_heads != 0 : num_q_heads % num_kv_heads != 0) {
    invalid(op, fmt::format("num_q_heads is {}, must be a multiple of num_kv_heads, {}", num_q_heads, num_kv_heads));
  }
}

void check_window(const char* op, const FlashAttentionOptions& options) {
  if (options.window < 1) invalid(op, fmt::format("window is {}, must be at least 1", options.window));
  if (options.window != kNoWindow) {
    if (options.mask != Mask::causal) {
      invalid(op, fmt::format("window is {} and needs the causal mask; without it give window_left and window_right",
                              options.window));
    }
    if (options.window_left != kNoWindow) {
      invalid(op,
              fmt::format("window is {} and window_left is {}, give one of them", options.window, options.window_left));
    }
  }
  if (!options.prefix_lens.empty() && (options.window != kNoWindow || options.window_left != kNoWindow)) {
    invalid(op, "prefix_lens makes the first keys visible to every query and can't stand beside a limit to the left");
  }
}

void check_outer_cut(const AttentionCall& call) {
  const FlashAttentionOptions& options = call.options;
  if (options.outer_cut == OuterCut::none) return;
  if (call.q_axes.batched) invalid(call.op, "outer_cut is given, which only packed sequences have");
  if (options.window != kNoWindow) {
    invalid(call.op, "outer_cut and window are both given; its band is window_left and window_right");
  }
}

void check_per_head(const char* op, const char* name, std::span<const float> values, std::int64_t num_q_heads,
                    bool may_be_minus_infinity) {
  if (values.empty()) return;
  if (std::int64_t(values.size()) != num_q_heads) {
    invalid(op, fmt::format("{} has {} entries, must have one for each of {} query heads", name, values.size(),
                            num_q_heads));
  }
  for (std::size_t h = 0; h < values.size(); ++h) {
    const bool none = may_be_minus_infinity && std::isinf(values[h]) && values[h] < 0;
    if (!std::isfinite(values[h]) && !none)
      invalid(op, fmt::format("{}[{}] is {}, must be finite", name, h, values[h]));
  }
}

// Dimension `from_last` counted from the last one: size and stride as broadcasting sees them.
std::int64_t size_from_last(const ConstTensorView& view, int from_last) {
  return from_last < view.rank() ? view.size(view.rank() - 1 - from_last) : 1;
}
std::int64_t stride_from_last(const ConstTensorView& view, int from_last) {
  return size_from_last(view, from_last) == 1 ? 0 : view.stride(view.rank() - 1 - from_last);
}

// `view` must broadcast to [batch, num_q_heads, q_len, num_keys], or [num_q_heads, total_q, n] for packed queries,
// where n is checked sequence by sequence.
void check_grid(const AttentionCall& call, const char* name, const ConstTensorView& view, std::int64_t heads,
                std::int64_t num_keys) {
  const bool batched = call.q_axes.batched;
  if (view.rank() > (batched ? 4 : 3)) {
    invalid(call.op, fmt::format("{} has {} dimensions, must have at most {}", name, view.rank(), batched ? 4 : 3));
  }
  const std::int64_t wanted[4] = {num_keys, call.q.size(call.q_axes.token), heads, batched ? call.q.size(0) : 1};
  for (int d = batched ? 0 : 1; d < 4; ++d) {
    const std::int64_t size = size_from_last(view, d);
    if (size != 1 && size != wanted[d]) {
      invalid(call.op, fmt::format("{} is {}, its dimension {} must be {} or 1", name, describe(view),
                                   view.rank() - 1 - d, wanted[d]));
    }
  }
}

void check_grids(const AttentionCall& call) {
  const FlashAttentionOptions& options = call.options;
  const std::int64_t num_keys = call.k.size(call.kv_axes.token);
  if (options.bias) {
    check_dtype(call.op, "bias", *options.bias, {DType::f32, DType::bf16, DType::f16});
    check_grid(call, "bias", *options.bias, call.num_q_heads(), num_keys);
  }
  if (options.visible) {
    check_dtype(call.op, "visible", *options.visible, {DType::boolean});
    check_grid(call, "visible", *options.visible, call.num_q_heads(), num_keys);
  }
  if (options.dropout_mask) {
    check_dtype(call.op, "dropout_mask", *options.dropout_mask, {DType::u8});
    check_grid(call, "dropout_mask", *options.dropout_mask, call.num_q_heads(), (num_keys + 7) / 8);
    if (options.dropout_seed) invalid(call.op, "dropout_mask and dropout_seed are both given, give one of them");
  } else if (options.keep_prob != 1.0f && !options.dropout_seed) {
    invalid(call.op, fmt::format("keep_prob is {} and needs dropout_mask or dropout_seed", options.keep_prob));
  }
  if (!(options.keep_prob > 0.0f) || options.keep_prob > 1.0f) {
    invalid(call.op, fmt::format("keep_prob is {}, must be over 0 and at most 1", options.keep_prob));
  }
  if (!options.tree) return;
  if (options.visible) invalid(call.op, "tree and visible are both given, give one of them");
  check_dtype(call.op, "tree", *options.tree, {DType::boolean});
  check_rank(call.op, "tree", *options.tree, call.q_axes.batched ? 3 : 2);
  if (call.q_axes.batched) {
    const std::int64_t batch = options.tree->size(0) == 1 ? 1 : call.q.size(0), q_len = call.q.size(2);
    check_shape(call.op, "tree", *options.tree, {batch, q_len, q_len});
  } else {
    check_shape(call.op, "tree", *options.tree, {call.q.size(0), -1});
  }
}

// The tree as a grid without heads.
ConstTensorView tree_grid(const AttentionCall& call) {
  const ConstTensorView& tree = *call.options.tree;
  if (!call.q_axes.batched) return tree;
  return {tree.data(),
          tree.dtype(),
          {tree.size(0), 1, tree.size(1), tree.size(2)},
          {tree.stride(0), 0, tree.stride(1), tree.stride(2)}};
}

ScoreGrid grid_of(const ConstTensorView& view) {
  return {view.data(), view.dtype(), stride_from_last(view, 2), stride_from_last(view, 1), stride_from_last(view, 0)};
}

std::int64_t clamp_window(std::int64_t window) {
  constexpr std::int64_t kBeyond = 2 * kMaxAttentionLen;
  return std::clamp(window, -kBeyond, kBeyond);
}

RowOutput rows_of(const std::optional<TensorView>& view, const AttentionAxes& axes) {
  if (!view) return {};
  return {view->as<float>(), view->stride(axes.token), view->stride(axes.head)};
}

}  // namespace

void check_at_most(const char* op, const char* name, std::int64_t value, std::int64_t limit) {
  if (value > limit) invalid(op, fmt::format("{} is {}, must be at most {}", name, value, limit));
}

bool AttentionCall::nothing_to_write() const {
  const bool no_rows = num_q_heads() == 0 || q.size(q_axes.token) == 0 || (q_axes.batched && q.size(0) == 0);
  const bool sums = options.lse || options.softmax_max || options.softmax_sum;
  return no_rows || (out.size(out.rank() - 1) == 0 && !sums);
}

AttentionProblem AttentionCall::problem() const {
  return {int(num_q_heads()), int(k.size(kv_axes.head)), int(q.size(q.rank() - 1)), int(v.size(v.rank() - 1)),
          k.dtype()};
}

void AttentionCall::validate(bool paged) const {
  check_rank(op, "q", q, q_axes.batched ? 4 : 3);
  // Codes go with any query, bf16 keys with f32 ones too.
  check_dtype(op, "q", q, {DType::f32, DType::bf16, DType::f16});
  if (paged && k.dtype() != DType::s8) {
    check_dtype(op, "q", q, {k.dtype(), DType::f32});
  } else if (rope) {
    check_dtype(op, "k", k, {q.dtype()});
  } else if (q.dtype() == DType::f32) {
    check_dtype(op, "k", k, {DType::f32, DType::bf16, DType::s8});
  } else {
    check_dtype(op, "k", k, {q.dtype(), DType::s8});
  }
  check_rows(op, "q", q);
  const bool shares_batch = q_axes.batched && kv_axes.batched;
  const std::int64_t batch = q_axes.batched ? q.size(0) : -1, kv_batch = shares_batch ? batch : -1;
  const std::int64_t q_len = q.size(q_axes.token), head_dim = q.size(q.rank() - 1);
  check_tensor(*this, "k", k, kv_axes, kv_batch, -1, -1, head_dim);
  const std::int64_t num_kv_heads = k.size(kv_axes.head), kv_len = k.size(kv_axes.token);
  check_tensor(*this, "v", v, kv_axes, kv_batch, num_kv_heads, kv_len, -1);
  const std::int64_t value_dim = v.size(v.rank() - 1);
  check_tensor(*this, "out", out, q_axes, batch, num_q_heads(), q_len, value_dim);
  check_dtype(op, "v", v, {k.dtype()});
  check_rows(op, "k", k);
  check_rows(op, "v", v);
  check_dtype(op, "out", out, {k.dtype() == DType::s8 ? q.dtype() : k.dtype(), DType::f32});
  check_rows(op, "out", out);
  check_at_most(op, "batch", batch, kMaxAttentionBatch);
  check_heads(op, num_q_heads(), num_kv_heads);
  if (head_dim < 1 || head_dim > kMaxHeadDim) {
    invalid(op, fmt::format("head_dim is {}, must be from 1 to {}", head_dim, kMaxHeadDim));
  }
  check_at_most(op, "value_dim", value_dim, kMaxHeadDim);
  check_at_most(op, q_len_name, q_len, kMaxAttentionLen);
  check_at_most(op, kv_len_name, kv_len, kMaxAttentionLen);
  if (options.softmax_scale && !std::isfinite(*options.softmax_scale)) {
    invalid(op, fmt::format("softmax_scale is {}, must be finite", *options.softmax_scale));
  }
  if (!std::isfinite(options.logit_soft_cap) || options.logit_soft_cap < 0) {
    invalid(op, fmt::format("logit_soft_cap is {}, must be finite and >= 0", options.logit_soft_cap));
  }
  if (options.block_size < 0) invalid(op, fmt::format("block_size is {}, must be >= 0", options.block_size));
  check_window(op, options);
  check_outer_cut(*this);
  check_per_head(op, "alibi_slopes", options.alibi_slopes, num_q_heads(), false);
  check_per_head(op, "sinks", options.sinks, num_q_heads(), true);
  check_codes(*this);
  check_grids(*this);
  check_sums(*this);
  check_outputs(*this);
}

AttentionArgs AttentionCall::args() const {
  AttentionArgs args{};
  args.q = q.data();
  args.q_dtype = q.dtype();
  args.q_row_stride = q.stride(q_axes.token);
  args.q_head_stride = q.stride(q_axes.head);
  args.out = out.data();
  args.out_dtype = out.dtype();
  args.out_row_stride = out.stride(q_axes.token);
  args.out_head_stride = out.stride(q_axes.head);
  args.lse = rows_of(options.lse, q_axes);
  args.softmax_max = rows_of(options.softmax_max, q_axes);
  args.softmax_sum = rows_of(options.softmax_sum, q_axes);
  args.k = k.data();
  args.k_head_stride = k.stride(kv_axes.head);
  args.k_row_stride = k.stride(kv_axes.token);
  args.v = v.data();
  args.v_head_stride = v.stride(kv_axes.head);
  args.v_row_stride = v.stride(kv_axes.token);
  const AttentionProblem shape = problem();
  args.head_dim = shape.head_dim;
  args.value_dim = shape.value_dim;
  args.group = shape.num_q_heads / shape.num_kv_heads;
  args.kv_dtype = shape.kv_dtype;
  args.key_tile = int(std::min<std::int64_t>(options.block_size, kMaxKeyTile));
  const double scale = options.softmax_scale ? double(*options.softmax_scale) : 1.0 / std::sqrt(shape.head_dim);
  args.negate_q = scale < 0;
  // Not 0: a masked score is -inf, and 0 * -inf is NaN.
  args.score_scale = std::max(1e-30f, float(std::abs(scale) * kLog2E));
  if (!options.sinks.empty()) args.sinks = options.sinks.data();
  if (options.dropout_mask) args.dropout = grid_of(*options.dropout_mask);
  if (options.dropout_seed && options.keep_prob < 1.0f) {
    args.seed = {true, std::uint32_t(*options.dropout_seed), std::uint32_t(*options.dropout_seed >> 32),
                 std::uint32_t(double(options.keep_prob) * 4294967296.0)};
  }
  args.keep_scale = 1.0f / options.keep_prob;
  if (k.dtype() == DType::s8) {
    args.k_codes = codes_of(*this, options.k_scales, options.k_offsets);
    args.v_codes = codes_of(*this, options.v_scales, options.v_offsets);
  }
  args.rotated = rotated;
  args.rope = rope;
  if (positions) {
    args.positions = positions->data();
    args.position_dtype = positions->dtype();
    args.position_stride = positions->stride(1);
  }
  ScoreRule& rule = args.rule;
  if (options.logit_soft_cap > 0) {
    rule.cap_in = float(std::abs(scale) / options.logit_soft_cap);
    rule.cap_out = float(options.logit_soft_cap * kLog2E);
  }
  if (options.bias) {
    rule.bias = grid_of(*options.bias);
    rule.bias_first = options.bias_before_scale;
    rule.bias_scale = rule.bias_first ? (args.negate_q ? -1.0f : 1.0f) : float(kLog2E);
  }
  if (options.visible) rule.visible = grid_of(*options.visible);
  if (options.tree) rule.visible = grid_of(tree_grid(*this));
  if (!options.alibi_slopes.empty()) rule.alibi_slopes = options.alibi_slopes.data();
  rule.any = rule.cap_out != 0 || options.bias || options.visible || options.tree || rule.alibi_slopes;
  return args;
}

void AttentionCall::place_rows(AttentionSequence& sequence, std::int64_t b, std::int64_t first_q) const {
  const auto rows = [&](const ConstTensorView& view) {
    return q_axes.batched ? b * view.stride(0) : first_q * view.stride(q_axes.token);
  };
  sequence.q_offset = rows(q);
  sequence.out_offset = rows(out);
  if (options.lse) sequence.lse_offset = rows(*options.lse);
  if (options.softmax_max) sequence.max_offset = rows(*options.softmax_max);
  if (options.softmax_sum) sequence.sum_offset = rows(*options.softmax_sum);
  const auto cells = [&](const ConstTensorView& grid) {
    return q_axes.batched ? b * stride_from_last(grid, 3) : first_q * stride_from_last(grid, 1);
  };
  if (options.bias) sequence.bias_offset = cells(*options.bias);
  if (options.visible) sequence.visible_offset = cells(*options.visible);
  if (options.tree) {
    sequence.visible_offset = cells(tree_grid(*this));
    sequence.visible_first_key = sequence.kv_len - sequence.q_len;
  }
  if (options.dropout_mask) sequence.dropout_offset = cells(*options.dropout_mask);
  if (positions) sequence.positions_offset = b * positions->stride(0);
  const bool cut = options.outer_cut != OuterCut::none, is_cut = cut && b == cut_sequence;
  const bool first = options.align == MaskAlign::first && !is_cut;
  sequence.first_position = first ? 0 : sequence.kv_len - sequence.q_len;
  const std::int64_t left = options.window == kNoWindow ? options.window_left : options.window - 1;
  sequence.window_left = clamp_window(cut && !is_cut ? kNoWindow : left);
  sequence.window_right = clamp_window(cut && !is_cut ? kNoWindow : options.window_right);
  if (options.mask == Mask::causal && !is_cut) {
    sequence.window_right = std::min<std::int64_t>(sequence.window_right, 0);
  }
  if (std::size_t(b) < options.prefix_lens.size()) sequence.prefix_len = options.prefix_lens[std::size_t(b)];
}

void AttentionCall::check_sequence(const AttentionSequence& sequence, std::int64_t b) const {
  if (!options.prefix_lens.empty() && (sequence.prefix_len < 0 || sequence.prefix_len > sequence.kv_len)) {
    invalid(op, fmt::format("prefix_lens[{}] is {}, must be from 0 to the sequence's {} keys", b, sequence.prefix_len,
                            sequence.kv_len));
  }
  if (options.tree && sequence.q_len > sequence.kv_len) {
    invalid(op, fmt::format("tree: sequence {} has {} queries over {} keys, must have at most as many", b,
                            sequence.q_len, sequence.kv_len));
  }
  if (q_axes.batched) return;
  const auto check_columns = [&](const char* name, const std::optional<ConstTensorView>& grid, std::int64_t needed) {
    if (!grid || sequence.q_len == 0) return;
    const std::int64_t size = size_from_last(*grid, 0);
    const bool broadcast = size == 1 && &grid != &options.tree;
    if (!broadcast && size < needed) {
      invalid(op, fmt::format("{} has {} columns, sequence {} needs {}", name, size, b, needed));
    }
  };
  check_columns("bias", options.bias, sequence.kv_len);
  check_columns("visible", options.visible, sequence.kv_len);
  check_columns("tree", options.tree, sequence.q_len);
  check_columns("dropout_mask", options.dropout_mask, (sequence.kv_len + 7) / 8);
}

}  // namespace ops_transformer
