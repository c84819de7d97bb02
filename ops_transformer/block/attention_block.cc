// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/block/attention_block.h"

#include <fmt/format.h>

#include <array>

#include "ops_transformer/base/validate.h"
#include "ops_transformer/block/qkv_epilogue_kernel.h"
#include "ops_transformer/gemm/matmul.h"
#include "ops_transformer/kv_cache/kv_validate.h"
#include "ops_transformer/kv_cache/kv_write.h"
#include "ops_transformer/norm/norm_prologue.h"
#include "ops_transformer/posembedding/rope_validate.h"
#include "ops_transformer/profiler/profiler.h"

namespace ops_transformer {
namespace {

constexpr const char* kOp = "attention_block";

void check_cache(const ConstTensorView& x, const AttentionShape& s, const TensorView& out,
                 const AttentionBlockOptions& options) {
  const KvPages& pages = *options.pages;
  if (std::int64_t(options.slots.size()) != x.size(0)) {
    invalid(kOp, fmt::format("slots has {} entries, must have {}", options.slots.size(), x.size(0)));
  }
  for (const TensorView* plane : {&pages.k, &pages.v}) {
    check_no_overlap(kOp, "pages", *plane, "x", x);
    check_no_overlap(kOp, "pages", *plane, "out", out);
    if (options.positions) check_no_overlap(kOp, "pages", *plane, "positions", *options.positions);
  }
  const std::size_t sequences = options.offsets.empty() ? 1 : options.offsets.size() - 1;
  if (options.cache->sequences.size() != sequences) {
    invalid(kOp, fmt::format("cache has {} sequences, must have {}", options.cache->sequences.size(), sequences));
  }
  if (options.cache->num_kv_heads() != s.num_kv_heads || options.cache->head_dim() != s.head_dim ||
      options.cache->value_dim() != s.value_dim) {
    invalid(kOp, fmt::format("cache has {} heads of {} and {}, must have {} of {} and {}",
                             options.cache->num_kv_heads(), options.cache->head_dim(), options.cache->value_dim(),
                             s.num_kv_heads, s.head_dim, s.value_dim));
  }
  // Keys and values as kv_write takes them, but for the dtype: they never exist as rows.
  const DType dtype = pages.k.dtype();
  const ConstTensorView k(nullptr, dtype, {x.size(0), s.num_kv_heads, s.head_dim}),
      v(nullptr, dtype, {x.size(0), s.num_kv_heads, s.value_dim});
  check_new_rows(kOp, k, v, options.slots, pages);
  check_paged_kv(kOp, *options.cache);
}

void validate(const ConstTensorView& x, const AttentionWeights& weights, const TensorView& out,
              const AttentionBlockOptions& options) {
  const AttentionShape& s = weights.shape();
  check_shape(kOp, "x", x, {-1, weights.hidden()});
  check_dtype(kOp, "x", x, {DType::f32, DType::bf16, DType::f16});
  check_rows(kOp, "x", x);
  check_shape(kOp, "out", out, {x.size(0), weights.hidden()});
  check_dtype(kOp, "out", out, {x.dtype()});
  check_rows(kOp, "out", out);
  check_output(kOp, "out", out);
  check_no_overlap(kOp, "out", out, "x", x);
  if (options.norm) {
    check_row_norm(kOp, x, *options.norm, out);
    if (options.norm->residual || options.norm->residual_out) {
      invalid(kOp, "norm.residual is given, must not be: the block's residual is x");
    }
  }
  if (bool(options.rope) != bool(options.positions)) {
    invalid(kOp, "rope and positions must both be given, or neither");
  }
  if (options.rope) {
    if (options.rope->rotary_dim() > s.head_dim) {
      invalid(kOp,
              fmt::format("rotary_dim is {}, must be at most head_dim = {}", options.rope->rotary_dim(), s.head_dim));
    }
    if (options.rope->angles().interleaved != (s.rope_style == RopeStyle::interleaved)) {
      invalid(kOp, "rope has another style of pairs than the weights were packed for");
    }
    check_shape(kOp, "positions", *options.positions, {x.size(0)});
    check_dtype(kOp, "positions", *options.positions, {DType::i32, DType::i64});
    check_no_overlap(kOp, "out", out, "positions", *options.positions);
    check_positions(kOp, *options.positions, -RopeTable::kMaxPosition, RopeTable::kMaxPosition);
  }
  if ((options.pages != nullptr) != (options.cache != nullptr) || (!options.pages && !options.slots.empty())) {
    invalid(kOp, "pages, slots and cache must all be given, or none");
  }
  const auto& offsets = options.offsets;
  if (!offsets.empty()) {
    bool good = offsets.front() == 0 && offsets.back() == x.size(0);
    for (std::size_t i = 1; i < offsets.size(); ++i) good &= offsets[i - 1] <= offsets[i];
    if (!good) invalid(kOp, fmt::format("offsets must start at 0, never fall and end at {} tokens", x.size(0)));
  }
  if (options.pages) check_cache(x, s, out, options);
  if (!(options.logit_soft_cap >= 0.0f && options.logit_soft_cap <= 3.4028235e38f)) {
    invalid(kOp, fmt::format("logit_soft_cap is {}, must be finite and at least 0", options.logit_soft_cap));
  }
  if (options.window < 1 || (options.window != kNoWindow && !options.causal)) {
    invalid(kOp, fmt::format("window is {}, must be at least 1, and causal given with it", options.window));
  }
}

TensorView heads(CallScope& call, DType dtype, std::int64_t tokens, std::int64_t num_heads, std::int64_t dim) {
  return {call.arena().allocate_bytes(std::size_t(tokens * num_heads * dim) * element_bytes(dtype)),
          dtype,
          {tokens, num_heads, dim}};
}

HeadTarget rows_of(const TensorView& heads) {
  return {heads.data(), heads.stride(1), heads.stride(0), 0, heads.dtype()};
}
HeadTarget pages_of(const TensorView& plane) {
  return {plane.data(), plane.stride(1), plane.stride(2), plane.stride(0), plane.dtype()};
}

// Projections of the normalised rows; rotated and written to the cache where the epilogue can.
void project(CallScope& call, const ConstTensorView& x, const AttentionWeights& weights,
             const AttentionBlockOptions& options, const QkvEpilogueArgs& epilogue) {
  Context& context = call.context();
  const PackedWeights& qkv = weights.qkv();
  std::optional<NormPrologue> norm;
  if (options.norm) norm.emplace(context, x, *options.norm);
  const Work norm_work = norm ? norm->work() : Work{};
  const AttentionShape& s = weights.shape();
  const std::int64_t tokens = x.size(0), q_size = s.num_q_heads * s.head_dim, kv_size = qkv.num_outputs() - q_size;
  Zone zone(context, "qkv_projection",
            {.bytes = std::int64_t(qkv.bytes()) + norm_work.bytes +
                      tokens * (qkv.num_inputs() * std::int64_t(element_bytes(x.dtype())) +
                                q_size * std::int64_t(element_bytes(epilogue.q.dtype)) +
                                kv_size * std::int64_t(element_bytes(epilogue.k.dtype))),
             .flops = 2 * tokens * qkv.num_inputs() * qkv.num_outputs() + norm_work.flops +
                      tokens * (s.num_q_heads + s.num_kv_heads) * epilogue.angles.half * 6});
  CallScope nested(context);
  const MatmulPlan plan =
      plan_matmul({qkv.dtype(), x.dtype(), options.arithmetic, tokens, qkv.num_inputs(),
                   (qkv.num_outputs() + kTileOutputs - 1) / kTileOutputs, norm.has_value(), qkv.scaling()},
                  this_device(context.isa()), nested.num_threads());
  zone.plan([&] { return describe(plan); });
  run_matmul(nested, plan, x, qkv, qkv_epilogue.at(context.isa()), epilogue, norm ? &norm->prologue() : nullptr);
}

}  // namespace

void attention_block(Context& context, const ConstTensorView& x, const AttentionWeights& weights, const TensorView& out,
                     const AttentionBlockOptions& options) {
  validate(x, weights, out, options);
  const std::int64_t tokens = x.size(0);
  if (tokens == 0) return;
  const AttentionShape& s = weights.shape();
  CallScope call(context);  // the operators below share its threads; its arena holds what passes between them
  const bool rotates_in_tiles = options.rope && weights.paired() && options.rope->rotary_dim() == s.head_dim;
  const bool to_cache = options.pages && (!options.rope || rotates_in_tiles);
  const DType dtype = !options.pages || options.pages->k.dtype() == x.dtype() ? x.dtype() : DType::f32;
  const TensorView q = heads(call, dtype, tokens, s.num_q_heads, s.head_dim);
  TensorView k, v;
  QkvEpilogueArgs epilogue{};
  epilogue.q = rows_of(q);
  if (to_cache) {
    epilogue.k = pages_of(options.pages->k);
    epilogue.v = pages_of(options.pages->v);
    epilogue.slots = options.slots.data();
    epilogue.page_size = options.pages->k.size(2);
  } else {
    k = heads(call, dtype, tokens, s.num_kv_heads, s.head_dim);
    v = heads(call, dtype, tokens, s.num_kv_heads, s.value_dim);
    epilogue.k = rows_of(k);
    epilogue.v = rows_of(v);
  }
  epilogue.num_outputs = weights.qkv().num_outputs();
  epilogue.num_q_heads = s.num_q_heads;
  epilogue.num_kv_heads = s.num_kv_heads;
  epilogue.head_dim = s.head_dim;
  epilogue.value_dim = s.value_dim;
  epilogue.paired = weights.paired();
  epilogue.interleaved = s.rope_style == RopeStyle::interleaved;
  if (rotates_in_tiles) {
    epilogue.angles = options.rope->angles();
    epilogue.positions = options.positions->data();
    epilogue.position_stride = options.positions->stride(0);
    epilogue.position_dtype = options.positions->dtype();
  }
  project(call, x, weights, options, epilogue);
  if (options.rope && !rotates_in_tiles) {
    rotary_embedding(context, q, *options.positions, *options.rope, q);
    rotary_embedding(context, k, *options.positions, *options.rope, k);
    if (options.pages) kv_write(context, k, v, options.slots, *options.pages);
  }
  const FlashAttentionOptions attention{.mask = options.causal ? Mask::causal : Mask::none,
                                        .softmax_scale = options.softmax_scale,
                                        .window = options.window,
                                        .logit_soft_cap = options.logit_soft_cap};
  const TensorView attended = heads(call, dtype, tokens, s.num_q_heads, s.value_dim);
  const std::array<std::int64_t, 2> whole = {0, tokens};
  const std::span<const std::int64_t> offsets = options.offsets.empty() ? whole : options.offsets;
  if (options.pages) {
    flash_attention_paged(context, q, *options.cache, attended, offsets, attention);
  } else {
    flash_attention_varlen(context, q, k, v, attended, offsets, offsets, attention);
  }
  LinearOptions last{.arithmetic = options.arithmetic};
  if (options.residual_connection) last.residual = x;
  linear(context, {attended.data(), dtype, {tokens, s.num_q_heads * s.value_dim}}, weights.output(), out, last);
}

}  // namespace ops_transformer
