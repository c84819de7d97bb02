// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/attention/flash_attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "ops_transformer/attention/attention_run.h"
#include "ops_transformer/base/validate.h"

namespace ops_transformer {
namespace {

constexpr std::int64_t kMaxLen = std::int64_t{1} << 30;
constexpr std::int64_t kMaxHeads = 65536, kMaxBatch = std::int64_t{1} << 20;

// The dimensions of a tensor that stand for heads and for tokens.
struct Axes {
  bool batched;  // [batch or page, head, token, dim], else [token, head, dim]
  int head, token;
};
constexpr Axes kBatched{true, 1, 2};
constexpr Axes kPacked{false, 1, 0};

void check_shape(const char* op, const char* name, const ConstTensorView& view, const Axes& axes, std::int64_t batch,
                 std::int64_t heads, std::int64_t tokens, std::int64_t dim) {
  if (axes.batched) {
    ops_transformer::check_shape(op, name, view, {batch, heads, tokens, dim});
  } else {
    ops_transformer::check_shape(op, name, view, {tokens, heads, dim});
  }
}

void check_lse(const char* op, const TensorView& lse, const Axes& axes, std::int64_t batch, std::int64_t heads,
               std::int64_t tokens) {
  if (axes.batched) {
    ops_transformer::check_shape(op, "lse", lse, {batch, heads, tokens});
  } else {
    ops_transformer::check_shape(op, "lse", lse, {tokens, heads});
  }
  check_dtype(op, "lse", lse, {DType::f32});
}

void check_at_most(const char* op, const char* name, std::int64_t value, std::int64_t limit) {
  if (value > limit) invalid(op, fmt::format("{} is {}, must be at most {}", name, value, limit));
}

void check_heads(const char* op, std::int64_t num_q_heads, std::int64_t num_kv_heads) {
  check_at_most(op, "num_q_heads", num_q_heads, kMaxHeads);
  check_at_most(op, "num_kv_heads", num_kv_heads, kMaxHeads);
  if (num_kv_heads == 0 ? num_q_heads != 0 : num_q_heads % num_kv_heads != 0) {
    invalid(op, fmt::format("num_q_heads is {}, must be a multiple of num_kv_heads, {}", num_q_heads, num_kv_heads));
  }
}

void check_dims(const char* op, std::int64_t head_dim, std::int64_t value_dim) {
  if (head_dim < 1 || head_dim > kMaxHeadDim) {
    invalid(op, fmt::format("head_dim is {}, must be from 1 to {}", head_dim, kMaxHeadDim));
  }
  check_at_most(op, "value_dim", value_dim, kMaxHeadDim);
}

void check_options(const char* op, const FlashAttentionOptions& options) {
  if (options.softmax_scale && !std::isfinite(*options.softmax_scale)) {
    invalid(op, fmt::format("softmax_scale is {}, must be finite", *options.softmax_scale));
  }
  if (options.window < 1) invalid(op, fmt::format("window is {}, must be at least 1", options.window));
  if (options.window_left < 0) invalid(op, fmt::format("window_left is {}, must be >= 0", options.window_left));
  if (options.window_right < 0) invalid(op, fmt::format("window_right is {}, must be >= 0", options.window_right));
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
}

// The outputs overlap neither each other nor an input, and each of their elements has its own place.
void check_outputs(const char* op, const TensorView& out, const FlashAttentionOptions& options,
                   std::initializer_list<std::pair<const char*, const ConstTensorView*>> inputs) {
  const auto check = [&](const char* name, const TensorView& output) {
    check_output(op, name, output);
    for (const auto& [input_name, input] : inputs) check_no_overlap(op, name, output, input_name, *input);
  };
  check("out", out);
  if (!options.lse) return;
  check("lse", *options.lse);
  check_no_overlap(op, "lse", *options.lse, "out", out);
}

// What the faces of the operator have in common. Names of lengths are those of the face's documentation.
struct Call {
  const char* op;
  ConstTensorView q, k, v;
  TensorView out;
  Axes q_axes, kv_axes;
  const FlashAttentionOptions& options;
  const char *q_len_name, *kv_len_name;

  std::int64_t num_q_heads() const { return q.size(q_axes.head); }
  bool nothing_to_write() const {
    const bool no_rows = num_q_heads() == 0 || q.size(q_axes.token) == 0 || (q_axes.batched && q.size(0) == 0);
    return no_rows || (out.size(out.rank() - 1) == 0 && !options.lse);
  }
  AttentionProblem problem() const {
    return {int(num_q_heads()), int(k.size(kv_axes.head)), int(q.size(q.rank() - 1)), int(v.size(v.rank() - 1)),
            k.dtype()};
  }
};

// Keys in pages have been checked on their own, and queries over them may be f32.
void validate(const Call& call, bool paged) {
  const auto& [op, q, k, v, out, q_axes, kv_axes, options, q_len_name, kv_len_name] = call;
  check_rank(op, "q", q, q_axes.batched ? 4 : 3);
  if (paged) {
    check_dtype(op, "q", q, {k.dtype(), DType::f32});
  } else {
    check_dtype(op, "q", q, {DType::f32, DType::bf16, DType::f16});
    check_dtype(op, "k", k, {q.dtype()});
  }
  check_rows(op, "q", q);
  const bool shares_batch = q_axes.batched && kv_axes.batched;
  const std::int64_t batch = q_axes.batched ? q.size(0) : -1, kv_batch = shares_batch ? batch : -1;
  const std::int64_t q_len = q.size(q_axes.token), head_dim = q.size(q.rank() - 1);
  check_shape(op, "k", k, kv_axes, kv_batch, -1, -1, head_dim);
  const std::int64_t num_kv_heads = k.size(kv_axes.head), kv_len = k.size(kv_axes.token);
  check_shape(op, "v", v, kv_axes, kv_batch, num_kv_heads, kv_len, -1);
  const std::int64_t value_dim = v.size(v.rank() - 1);
  check_shape(op, "out", out, q_axes, batch, call.num_q_heads(), q_len, value_dim);
  check_dtype(op, "v", v, {k.dtype()});
  check_rows(op, "k", k);
  check_rows(op, "v", v);
  check_dtype(op, "out", out, {k.dtype(), DType::f32});
  check_rows(op, "out", out);
  check_at_most(op, "batch", batch, kMaxBatch);
  check_heads(op, call.num_q_heads(), num_kv_heads);
  check_dims(op, head_dim, value_dim);
  check_at_most(op, q_len_name, q_len, kMaxLen);
  check_at_most(op, kv_len_name, kv_len, kMaxLen);
  check_options(op, options);
  if (options.lse) check_lse(op, *options.lse, q_axes, batch, call.num_q_heads(), q_len);
  check_outputs(op, out, options, {{"q", &q}, {"k", &k}, {"v", &v}});
}

AttentionArgs make_args(const Call& call) {
  const auto& [op, q, k, v, out, q_axes, kv_axes, options, q_len_name, kv_len_name] = call;
  const AttentionProblem problem = call.problem();
  AttentionArgs args{};
  args.q = q.data();
  args.q_dtype = q.dtype();
  args.q_row_stride = q.stride(q_axes.token);
  args.q_head_stride = q.stride(q_axes.head);
  args.out = out.data();
  args.out_dtype = out.dtype();
  args.out_row_stride = out.stride(q_axes.token);
  args.out_head_stride = out.stride(q_axes.head);
  if (options.lse) {
    args.lse = options.lse->as<float>();
    args.lse_row_stride = options.lse->stride(q_axes.token);
    args.lse_head_stride = options.lse->stride(q_axes.head);
  }
  args.k = k.data();
  args.k_head_stride = k.stride(kv_axes.head);
  args.k_row_stride = k.stride(kv_axes.token);
  args.v = v.data();
  args.v_head_stride = v.stride(kv_axes.head);
  args.v_row_stride = v.stride(kv_axes.token);
  args.head_dim = problem.head_dim;
  args.value_dim = problem.value_dim;
  args.group = problem.num_q_heads / problem.num_kv_heads;
  args.kv_dtype = problem.kv_dtype;
  args.window_left = options.window == kNoWindow ? options.window_left : options.window - 1;
  args.window_right = options.mask == Mask::causal ? 0 : options.window_right;
  const double scale = options.softmax_scale ? double(*options.softmax_scale) : 1.0 / std::sqrt(problem.head_dim);
  args.negate_q = scale < 0;
  // Not 0: a masked score is -inf, and 0 * -inf is NaN.
  args.score_scale = std::max(1e-30f, float(std::abs(scale) * 1.4426950408889634));
  return args;
}

// make_sequence(b) gives sequence b of the batch.
template <class MakeSequence>
void run(Context& context, const Call& call, const AttentionArgs& args, std::size_t batch,
         const MakeSequence& make_sequence) {
  const AttentionProblem problem = call.problem();
  Work work;
  for (std::size_t b = 0; context.profiler() && b < batch; ++b) {
    const Work one = work_of(problem, args, make_sequence(b));
    work.bytes += one.bytes;
    work.flops += one.flops;
  }
  Zone zone(context, call.op, work);
  CallScope scope(context);
  const auto sequences = scope.arena().allocate<AttentionSequence>(batch);
  for (std::size_t b = 0; b < batch; ++b) sequences[b] = make_sequence(b);
  run_attention(scope, zone, problem, args, sequences);
}

void check_offsets(const char* op, const char* name, std::span<const std::int64_t> offsets, std::size_t batch,
                   std::int64_t total) {
  if (offsets.size() != batch + 1) {
    invalid(op, fmt::format("{} has {} entries, must have batch + 1 = {}", name, offsets.size(), batch + 1));
  }
  if (offsets[0] != 0) invalid(op, fmt::format("{}[0] is {}, must be 0", name, offsets[0]));
  for (std::size_t b = 0; b < batch; ++b) {
    if (offsets[b + 1] < offsets[b]) {
      invalid(op,
              fmt::format("{}[{}] is {}, less than the entry before it, {}", name, b + 1, offsets[b + 1], offsets[b]));
    }
  }
  if (offsets[batch] != total) {
    invalid(op, fmt::format("{}[{}] is {}, must be the number of rows, {}", name, batch, offsets[batch], total));
  }
}

}  // namespace

void flash_attention(Context& context, const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
                     const TensorView& out, const FlashAttentionOptions& options) {
  const Call call{"flash_attention", q, k, v, out, kBatched, kBatched, options, "q_len", "kv_len"};
  validate(call, false);
  if (call.nothing_to_write()) return;
  const AttentionArgs args = make_args(call);
  const std::int64_t lse_stride = options.lse ? options.lse->stride(0) : 0;
  run(context, call, args, std::size_t(q.size(0)), [&](std::size_t index) {
    const auto b = std::int64_t(index);
    return AttentionSequence{b * q.stride(0), b * k.stride(0), b * v.stride(0), b * out.stride(0),
                             b * lse_stride,  nullptr,         q.size(2),       k.size(2)};
  });
}

void flash_attention_varlen(Context& context, const ConstTensorView& q, const ConstTensorView& k,
                            const ConstTensorView& v, const TensorView& out, std::span<const std::int64_t> q_offsets,
                            std::span<const std::int64_t> kv_offsets, const FlashAttentionOptions& options) {
  const Call call{"flash_attention_varlen", q, k, v, out, kPacked, kPacked, options, "total_q", "total_kv"};
  validate(call, false);
  if (q_offsets.empty()) invalid(call.op, "q_offsets is empty, must have batch + 1 entries");
  const std::size_t batch = q_offsets.size() - 1;
  check_at_most(call.op, "batch", std::int64_t(batch), kMaxBatch);
  check_offsets(call.op, "q_offsets", q_offsets, batch, q.size(0));
  check_offsets(call.op, "kv_offsets", kv_offsets, batch, k.size(0));
  if (call.nothing_to_write()) return;
  const AttentionArgs args = make_args(call);
  run(context, call, args, batch, [&](std::size_t b) {
    const std::int64_t first_q = q_offsets[b], first_kv = kv_offsets[b];
    return AttentionSequence{first_q * q.stride(0),      first_kv * k.stride(0),        first_kv * v.stride(0),
                             first_q * out.stride(0),    first_q * args.lse_row_stride, nullptr,
                             q_offsets[b + 1] - first_q, kv_offsets[b + 1] - first_kv};
  });
}

void flash_attention_paged(Context& context, const ConstTensorView& q, const PagedKvView& cache, const TensorView& out,
                           std::span<const std::int64_t> q_offsets, const FlashAttentionOptions& options) {
  const Call call{
      "flash_attention_paged", q, cache.k, cache.v, out, kPacked, kBatched, options, "total_q", "page_size"};
  check_paged_kv(call.op, cache);
  validate(call, true);
  const std::size_t batch = cache.sequences.size();
  check_at_most(call.op, "batch", std::int64_t(batch), kMaxBatch);
  check_offsets(call.op, "q_offsets", q_offsets, batch, q.size(0));
  for (const PagedSequence& sequence : cache.sequences) check_at_most(call.op, "kv_len", sequence.kv_len, kMaxLen);
  if (call.nothing_to_write()) return;
  AttentionArgs args = make_args(call);
  args.page_size = cache.page_size();
  args.k_page_stride = cache.k.stride(0);
  args.v_page_stride = cache.v.stride(0);
  run(context, call, args, batch, [&](std::size_t b) {
    // Without keys a sequence may have no table; then nothing is read, though it looks contiguous.
    const PagedSequence& sequence = cache.sequences[b];
    return AttentionSequence{q_offsets[b] * q.stride(0),
                             0,
                             0,
                             q_offsets[b] * out.stride(0),
                             q_offsets[b] * args.lse_row_stride,
                             sequence.pages,
                             q_offsets[b + 1] - q_offsets[b],
                             sequence.kv_len};
  });
}

}  // namespace ops_transformer
