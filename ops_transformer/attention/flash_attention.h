// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>

#include "ops_transformer/base/context.h"
#include "ops_transformer/base/error.h"
#include "ops_transformer/base/tensor_view.h"
#include "ops_transformer/kv_cache/paged_kv_view.h"

namespace ops_transformer {

enum class Mask : std::uint8_t { none, causal };
enum class MaskAlign : std::uint8_t { last, first };
enum class OuterCut : std::uint8_t { none, first, last };

inline constexpr std::int64_t kNoWindow = std::numeric_limits<std::int64_t>::max();

/// Query i of q_len stands at key position p = i + kv_len - q_len (bottom-right aligned), or at p = i
/// (MaskAlign::first, top-left). What the rules hide is not computed, and no mask or bias is ever built. Order of a
/// score: bias before the scale, scale, soft-cap, bias, ALiBi, masks, then the softmax with its sink.
struct FlashAttentionOptions {
  Mask mask = Mask::none;                 // causal: keys <= p
  MaskAlign align = MaskAlign::last;      // where p stands
  std::optional<float> softmax_scale{};   // unset: 1 / sqrt(head_dim)
  std::int64_t window = kNoWindow;        // with causal: the last `window` keys, itself included
  std::int64_t window_left = kNoWindow;   // or two-sided: keys >= p - window_left
  std::int64_t window_right = kNoWindow;  //               keys <= p + window_right; negative: a band beside p
  OuterCut outer_cut = OuterCut::none;    // packed: window_left and window_right, aligned last, are all that holds
                                          // for the first or last sequence with queries, mask and align for
                                          // the others
  std::span<const std::int64_t> prefix_lens{};  // one a sequence: keys below it are visible to every query
  std::optional<ConstTensorView> visible{};     // boolean, true = visible; broadcast to [batch, num_q_heads, q_len,
                                                // kv_len], any strides
  std::optional<ConstTensorView> tree{};        // boolean [batch or 1, q_len, q_len]: which of the last q_len keys each
                                                // query sees; those before them are visible
  std::optional<ConstTensorView> bias{};        // f32 | bf16 | f16, added to scores, broadcast as `visible`; -inf hides
  bool bias_before_scale = false;               // scale * (q k^T + bias)
  float logit_soft_cap = 0.0f;                  // 0: off; else cap * tanh(score / cap)
  std::span<const float> alibi_slopes{};        // one a query head: score - slope * |p - key| (Press et al., 2022)
  std::optional<ConstTensorView> dropout_mask{};  // u8, broadcast to [batch, num_q_heads, q_len, ceil(kv_len / 8)]: bit
                                                  // key % 8 of byte key / 8 set: the weight is kept
  std::optional<std::uint64_t> dropout_seed{};    // or drawn: the weight is kept where word key % 4 of Philox4x32-10
                                                  // (Salmon et al., 2011) at the counter {key / 4, query, query head,
                                                  // sequence}, key {seed, seed >> 32}, is under keep_prob * 2^32
  float keep_prob = 1.0f;  // kept weights are divided by it, in (0, 1]; other than 1 it needs a mask or a seed
  std::optional<ConstTensorView> k_scales{};   // of s8 keys, f32: a key is (code + offset) * scale. Broadcast to k
  std::optional<ConstTensorView> k_offsets{};  // [.., num_kv_heads, kv_len, head_dim] (or k pages), either over
  std::optional<ConstTensorView> v_scales{};   // kv_len and batch or over head_dim: [num_kv_heads, 1, head_dim] is by
  std::optional<ConstTensorView> v_offsets{};  // channel, [batch, num_kv_heads, kv_len, 1] by token. Unset offset: 0
  std::span<const float> sinks{};              // one a query head: a score that joins the sum without a value
  std::optional<TensorView> lse{};             // out: log(sum(exp(scores))), natural log, f32
  std::optional<TensorView> softmax_max{};     // out: largest score of the query, f32, eight copies
  std::optional<TensorView> softmax_sum{};     // out: sum(exp(score - largest)), f32, eight copies
  std::int64_t block_size = 0;  // keys of a tile instead of the plan's choice (0), rounded up to a multiple of 16, at
                                // most 256; results are the same but for rounding
};

/// Scaled dot-product attention without a score matrix (Dao et al., 2022; Milakov and Gimelshein, 2018): out =
/// softmax(softmax_scale q k^T, masked) v. Query head h reads key head h / (num_q_heads / num_kv_heads). Scores and
/// sums are f32, out is rounded once; with bf16 keys the probabilities may enter the second product as bf16, and their
/// sum adds the rounded ones. A query that sees no key gives out 0, lse -inf (with a sink: the sink), maximum -inf and
/// sum 0; what is masked is never read into a result.
///
/// q     [batch, num_q_heads, q_len, head_dim]     f32 | bf16 | f16, last dimension contiguous (of every tensor), other
///                                                 strides free; head_dim 1...768
/// k     [batch, num_kv_heads, kv_len, head_dim]   dtype of q; bf16 under f32 q too, which is rounded to bf16; s8 with
///                                                 k_scales under any q; num_q_heads % num_kv_heads == 0
/// v     [batch, num_kv_heads, kv_len, value_dim]  dtype of k, s8 with v_scales; value_dim 0...768
/// out   [batch, num_q_heads, q_len, value_dim]    dtype of k (under s8: of q), or f32; overlaps no input
/// options.lse          [batch, num_q_heads, q_len] f32
/// options.softmax_max, softmax_sum  [batch, num_q_heads, q_len, 8] f32
/// At most 2^20 sequences, 65536 heads and 2^30 tokens a sequence.
/// Throws InvalidArgument, which names the argument; past validation nothing fails.
OPS_TRANSFORMER_API void flash_attention(Context& context, const ConstTensorView& q, const ConstTensorView& k,
                                         const ConstTensorView& v, const TensorView& out,
                                         const FlashAttentionOptions& options = {});

/// The same over sequences packed one after another: sequence b has queries q_offsets[b]...q_offsets[b + 1] and keys
/// kv_offsets[b]...kv_offsets[b + 1]. Both lists have batch + 1 entries, start at 0, never fall and end at total_q and
/// total_kv. Of options, visible and bias broadcast to [num_q_heads, total_q, n] and tree is [total_q, n], column j for
/// key j of the row's own sequence (or of its last q_len), n at least as many as the longest sequence needs.
///
/// q     [total_q, num_q_heads, head_dim]
/// k     [total_kv, num_kv_heads, head_dim], v [total_kv, num_kv_heads, value_dim]
/// out   [total_q, num_q_heads, value_dim]
/// options.lse  [total_q, num_q_heads] f32; softmax_max, softmax_sum [total_q, num_q_heads, 8] f32
OPS_TRANSFORMER_API void flash_attention_varlen(Context& context, const ConstTensorView& q, const ConstTensorView& k,
                                                const ConstTensorView& v, const TensorView& out,
                                                std::span<const std::int64_t> q_offsets,
                                                std::span<const std::int64_t> kv_offsets,
                                                const FlashAttentionOptions& options = {});

/// The same with keys and values in pages; sequence b of the cache belongs to queries q_offsets[b]...q_offsets[b + 1].
/// q may be f32 over a bf16 cache: then it is rounded to bf16, and out is f32 | bf16.
///
/// q     [total_q, num_q_heads, head_dim]   dtype of the cache, or f32; any over s8
/// out   [total_q, num_q_heads, value_dim]  dtype of the cache (under s8: of q), or f32
/// options      as flash_attention_varlen
OPS_TRANSFORMER_API void flash_attention_paged(Context& context, const ConstTensorView& q, const PagedKvView& cache,
                                               const TensorView& out, std::span<const std::int64_t> q_offsets,
                                               const FlashAttentionOptions& options = {});

}  // namespace ops_transformer
