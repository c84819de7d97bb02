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

// The dimensions of a tensor that stand for heads and for tokens; -1: it has no batch.
struct Axes {
  int batch, head, token, dim;
};
constexpr Axes kBatched{0, 1, 2, 3};
constexpr Axes kPacked{-1, 1, 0, 2};

void check_float(const char* op, const char* name, const ConstTensorView& view) {
  check_dtype(op, name, view, {DType::f32, DType::bf16, DType::f16});
  check_rows(op, name, view);
}

void check_heads(const char* op, std::int64_t num_q_heads, std::int64_t num_kv_heads) {
  if (num_kv_heads == 0 ? num_q_heads != 0 : num_q_heads % num_kv_heads != 0) {
    invalid(op, fmt::format("num_q_heads is {}, must be a multiple of num_kv_heads, {}", num_q_heads, num_kv_heads));
  }
}

void check_dims(const char* op, std::int64_t head_dim, std::int64_t value_dim) {
  if (head_dim < 1 || head_dim > kMaxHeadDim) {
    invalid(op, fmt::format("head_dim is {}, must be from 1 to {}", head_dim, kMaxHeadDim));
  }
  if (value_dim > kMaxHeadDim) {
    invalid(op, fmt::format("value_dim is {}, must be at most {}", value_dim, kMaxHeadDim));
  }
}

void check_length(const char* op, const char* name, std::int64_t length) {
  if (length > kMaxLen) invalid(op, fmt::format("{} is {}, must be at most {}", name, length, kMaxLen));
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
    for (int dim = 0; dim < output.rank(); ++dim) {
      if (output.num_elements() > 0 && output.size(dim) > 1 && output.stride(dim) == 0) {
        invalid(op, fmt::format("{} has stride 0 in dimension {} of size {}", name, dim, output.size(dim)));
      }
    }
    for (const auto& [input_name, input] : inputs) check_no_overlap(op, name, output, input_name, *input);
  };
  check("out", out);
  if (!options.lse) return;
  check("lse", *options.lse);
  check_no_overlap(op, "lse", *options.lse, "out", out);
}

AttentionArgs make_args(const ConstTensorView& q, const TensorView& out, const FlashAttentionOptions& options,
                        const AttentionProblem& problem, const Axes& axes) {
  AttentionArgs args{};
  args.q = q.data();
  args.q_dtype = q.dtype();
  args.q_row_stride = q.stride(axes.token);
  args.q_head_stride = q.stride(axes.head);
  args.out = out.data();
  args.out_dtype = out.dtype();
  args.out_row_stride = out.stride(axes.token);
  args.out_head_stride = out.stride(axes.head);
  if (options.lse) {
    args.lse = options.lse->as<float>();
    args.lse_row_stride = options.lse->stride(axes.token);
    args.lse_head_stride = options.lse->stride(axes.head);
  }
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

void set_keys(AttentionArgs& args, const ConstTensorView& k, const ConstTensorView& v, int head, int token) {
  args.k = k.data();
  args.v = v.data();
  args.k_head_stride = k.stride(head);
  args.k_row_stride = k.stride(token);
  args.v_head_stride = v.stride(head);
  args.v_row_stride = v.stride(token);
}

AttentionProblem make_problem(const ConstTensorView& q, DType kv_dtype, DType out_dtype, const Axes& axes,
                              std::int64_t num_kv_heads, std::int64_t value_dim) {
  return {
      int(q.size(axes.head)), int(num_kv_heads), int(q.size(axes.dim)), int(value_dim), q.dtype(), kv_dtype, out_dtype};
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
  constexpr const char* kOp = "flash_attention";
  check_rank(kOp, "q", q, 4);
  check_float(kOp, "q", q);
  const std::int64_t batch = q.size(0), num_q_heads = q.size(1), q_len = q.size(2), head_dim = q.size(3);
  check_shape(kOp, "k", k, {batch, -1, -1, head_dim});
  const std::int64_t num_kv_heads = k.size(1), kv_len = k.size(2);
  check_shape(kOp, "v", v, {batch, num_kv_heads, kv_len, -1});
  const std::int64_t value_dim = v.size(3);
  check_shape(kOp, "out", out, {batch, num_q_heads, q_len, value_dim});
  for (const auto& [name, view] : {std::pair{"k", &k}, {"v", &v}}) {
    check_dtype(kOp, name, *view, {q.dtype()});
    check_rows(kOp, name, *view);
  }
  check_dtype(kOp, "out", out, {q.dtype(), DType::f32});
  check_rows(kOp, "out", out);
  check_heads(kOp, num_q_heads, num_kv_heads);
  check_dims(kOp, head_dim, value_dim);
  check_length(kOp, "q_len", q_len);
  check_length(kOp, "kv_len", kv_len);
  check_options(kOp, options);
  if (options.lse) {
    check_shape(kOp, "lse", *options.lse, {batch, num_q_heads, q_len});
    check_dtype(kOp, "lse", *options.lse, {DType::f32});
  }
  check_outputs(kOp, out, options, {{"q", &q}, {"k", &k}, {"v", &v}});
  if (batch == 0 || num_q_heads == 0 || q_len == 0) return;

  const AttentionProblem problem = make_problem(q, k.dtype(), out.dtype(), kBatched, num_kv_heads, value_dim);
  AttentionArgs args = make_args(q, out, options, problem, kBatched);
  set_keys(args, k, v, 1, 2);
  CallScope call(context);
  const auto sequences = call.arena().allocate<AttentionSequence>(std::size_t(batch));
  for (std::int64_t b = 0; b < batch; ++b) {
    sequences[std::size_t(b)] = {b * q.stride(0),
                                 b * k.stride(0),
                                 b * v.stride(0),
                                 b * out.stride(0),
                                 options.lse ? b * options.lse->stride(0) : 0,
                                 nullptr,
                                 q_len,
                                 kv_len};
  }
  run_attention(call, kOp, problem, args, sequences);
}

void flash_attention_varlen(Context& context, const ConstTensorView& q, const ConstTensorView& k,
                            const ConstTensorView& v, const TensorView& out, std::span<const std::int64_t> q_offsets,
                            std::span<const std::int64_t> kv_offsets, const FlashAttentionOptions& options) {
  constexpr const char* kOp = "flash_attention_varlen";
  check_rank(kOp, "q", q, 3);
  check_float(kOp, "q", q);
  const std::int64_t total_q = q.size(0), num_q_heads = q.size(1), head_dim = q.size(2);
  check_shape(kOp, "k", k, {-1, -1, head_dim});
  const std::int64_t total_kv = k.size(0), num_kv_heads = k.size(1);
  check_shape(kOp, "v", v, {total_kv, num_kv_heads, -1});
  const std::int64_t value_dim = v.size(2);
  check_shape(kOp, "out", out, {total_q, num_q_heads, value_dim});
  for (const auto& [name, view] : {std::pair{"k", &k}, {"v", &v}}) {
    check_dtype(kOp, name, *view, {q.dtype()});
    check_rows(kOp, name, *view);
  }
  check_dtype(kOp, "out", out, {q.dtype(), DType::f32});
  check_rows(kOp, "out", out);
  check_heads(kOp, num_q_heads, num_kv_heads);
  check_dims(kOp, head_dim, value_dim);
  check_options(kOp, options);
  if (q_offsets.empty()) invalid(kOp, "q_offsets is empty, must have batch + 1 entries");
  const std::size_t batch = q_offsets.size() - 1;
  check_offsets(kOp, "q_offsets", q_offsets, batch, total_q);
  check_offsets(kOp, "kv_offsets", kv_offsets, batch, total_kv);
  check_length(kOp, "total_q", total_q);
  check_length(kOp, "total_kv", total_kv);
  if (options.lse) {
    check_shape(kOp, "lse", *options.lse, {total_q, num_q_heads});
    check_dtype(kOp, "lse", *options.lse, {DType::f32});
  }
  check_outputs(kOp, out, options, {{"q", &q}, {"k", &k}, {"v", &v}});
  if (total_q == 0 || num_q_heads == 0) return;

  const AttentionProblem problem = make_problem(q, k.dtype(), out.dtype(), kPacked, num_kv_heads, value_dim);
  AttentionArgs args = make_args(q, out, options, problem, kPacked);
  set_keys(args, k, v, 1, 0);
  CallScope call(context);
  const auto sequences = call.arena().allocate<AttentionSequence>(batch);
  for (std::size_t b = 0; b < batch; ++b) {
    sequences[b] = {q_offsets[b] * q.stride(0),      kv_offsets[b] * k.stride(0),        kv_offsets[b] * v.stride(0),
                    q_offsets[b] * out.stride(0),    q_offsets[b] * args.lse_row_stride, nullptr,
                    q_offsets[b + 1] - q_offsets[b], kv_offsets[b + 1] - kv_offsets[b]};
  }
  run_attention(call, kOp, problem, args, sequences);
}

void flash_attention_paged(Context& context, const ConstTensorView& q, const PagedKvView& cache, const TensorView& out,
                           std::span<const std::int64_t> q_offsets, const FlashAttentionOptions& options) {
  constexpr const char* kOp = "flash_attention_paged";
  check_paged_kv(kOp, cache);
  check_shape(kOp, "q", q, {-1, -1, cache.head_dim()});
  check_dtype(kOp, "q", q, {cache.k.dtype(), DType::f32});
  check_rows(kOp, "q", q);
  const std::int64_t total_q = q.size(0), num_q_heads = q.size(1);
  check_shape(kOp, "out", out, {total_q, num_q_heads, cache.value_dim()});
  check_dtype(kOp, "out", out, {cache.k.dtype(), DType::f32});
  check_rows(kOp, "out", out);
  check_heads(kOp, num_q_heads, cache.num_kv_heads());
  check_dims(kOp, cache.head_dim(), cache.value_dim());
  check_options(kOp, options);
  const std::size_t batch = cache.sequences.size();
  check_offsets(kOp, "q_offsets", q_offsets, batch, total_q);
  check_length(kOp, "total_q", total_q);
  for (const PagedSequence& sequence : cache.sequences) check_length(kOp, "kv_len", sequence.kv_len);
  if (options.lse) {
    check_shape(kOp, "lse", *options.lse, {total_q, num_q_heads});
    check_dtype(kOp, "lse", *options.lse, {DType::f32});
  }
  check_outputs(kOp, out, options, {{"q", &q}, {"k pages", &cache.k}, {"v pages", &cache.v}});
  if (total_q == 0 || num_q_heads == 0) return;

  const AttentionProblem problem =
      make_problem(q, cache.k.dtype(), out.dtype(), kPacked, cache.num_kv_heads(), cache.value_dim());
  AttentionArgs args = make_args(q, out, options, problem, kPacked);
  set_keys(args, cache.k, cache.v, 1, 2);
  args.page_size = cache.page_size();
  args.k_page_stride = cache.k.stride(0);
  args.v_page_stride = cache.v.stride(0);
  CallScope call(context);
  const auto sequences = call.arena().allocate<AttentionSequence>(batch);
  for (std::size_t b = 0; b < batch; ++b) {
    const PagedSequence& sequence = cache.sequences[b];
    // A sequence without keys has no table either, and must not read as contiguous: it has no rows to read at all.
    sequences[b] = {q_offsets[b] * q.stride(0),
                    0,
                    0,
                    q_offsets[b] * out.stride(0),
                    q_offsets[b] * args.lse_row_stride,
                    sequence.pages,
                    q_offsets[b + 1] - q_offsets[b],
                    sequence.kv_len};
  }
  run_attention(call, kOp, problem, args, sequences);
}

}  // namespace ops_transformer
