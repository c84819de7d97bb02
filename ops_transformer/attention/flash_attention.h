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

inline constexpr std::int64_t kNoWindow = std::numeric_limits<std::int64_t>::max();

/// Query i of q_len stands at key position p = i + kv_len - q_len (bottom-right aligned).
struct FlashAttentionOptions {
  Mask mask = Mask::none;                 // causal: keys <= p
  std::optional<float> softmax_scale{};   // unset: 1 / sqrt(head_dim)
  std::int64_t window = kNoWindow;        // with causal: the last `window` keys, itself included
  std::int64_t window_left = kNoWindow;   // or two-sided: keys >= p - window_left
  std::int64_t window_right = kNoWindow;  //               keys <= p + window_right
  std::optional<TensorView> lse{};        // out: log(sum(exp(scaled scores))), natural log, f32
};

/// Scaled dot-product attention without a score matrix (Dao et al., 2022; Milakov and Gimelshein, 2018): out =
/// softmax(softmax_scale q k^T, masked) v. Query head h reads key head h / (num_q_heads / num_kv_heads). Scores and
/// sums are f32, out is rounded once; with bf16 keys the probabilities may enter the second product as bf16, and their
/// sum adds the rounded ones. A query that sees no key gives out 0 and lse -inf; what is masked is never read into a
/// result.
///
/// q     [batch, num_q_heads, q_len, head_dim]     f32 | bf16 | f16, last dimension contiguous (of every tensor), other
///                                                 strides free; head_dim 1...768
/// k     [batch, num_kv_heads, kv_len, head_dim]   dtype of q; num_q_heads % num_kv_heads == 0
/// v     [batch, num_kv_heads, kv_len, value_dim]  dtype of q; value_dim 0...768
/// out   [batch, num_q_heads, q_len, value_dim]    dtype of q, or f32; overlaps no input
/// options.lse  [batch, num_q_heads, q_len] f32
/// At most 2^20 sequences, 65536 heads and 2^30 tokens a sequence.
/// Throws InvalidArgument, which names the argument; past validation nothing fails.
OPS_TRANSFORMER_API void flash_attention(Context& context, const ConstTensorView& q, const ConstTensorView& k,
                                         const ConstTensorView& v, const TensorView& out,
                                         const FlashAttentionOptions& options = {});

/// The same over sequences packed one after another: sequence b has queries q_offsets[b]...q_offsets[b + 1] and keys
/// kv_offsets[b]...kv_offsets[b + 1]. Both lists have batch + 1 entries, start at 0, never fall and end at total_q and
/// total_kv.
///
/// q     [total_q, num_q_heads, head_dim]
/// k     [total_kv, num_kv_heads, head_dim], v [total_kv, num_kv_heads, value_dim]
/// out   [total_q, num_q_heads, value_dim]
/// options.lse  [total_q, num_q_heads] f32
OPS_TRANSFORMER_API void flash_attention_varlen(Context& context, const ConstTensorView& q, const ConstTensorView& k,
                                                const ConstTensorView& v, const TensorView& out,
                                                std::span<const std::int64_t> q_offsets,
                                                std::span<const std::int64_t> kv_offsets,
                                                const FlashAttentionOptions& options = {});

/// The same with keys and values in pages; sequence b of the cache belongs to queries q_offsets[b]...q_offsets[b + 1].
/// q may be f32 over a bf16 cache: then it is rounded to bf16, and out is f32 | bf16.
///
/// q     [total_q, num_q_heads, head_dim]   dtype of the cache, or f32
/// out   [total_q, num_q_heads, value_dim]  dtype of the cache, or f32
/// options.lse  [total_q, num_q_heads] f32
OPS_TRANSFORMER_API void flash_attention_paged(Context& context, const ConstTensorView& q, const PagedKvView& cache,
                                               const TensorView& out, std::span<const std::int64_t> q_offsets,
                                               const FlashAttentionOptions& options = {});

}  // namespace ops_transformer
