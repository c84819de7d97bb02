// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "ops_transformer/base/context.h"
#include "ops_transformer/base/error.h"
#include "ops_transformer/base/tensor_view.h"
#include "ops_transformer/posembedding/rope.h"

namespace ops_transformer {

struct FusedRopeAttentionOptions {
  std::optional<ConstTensorView> positions{};  // [kv_len] or [batch, kv_len], i32 | i64, of the keys; unset: 0, 1, ...
  bool causal = false;
  std::optional<float> softmax_scale{};     // unset: 1 / sqrt(head_dim)
  std::optional<TensorView> lse{};          // out, [batch, num_q_heads, q_len] f32
  std::optional<TensorView> rotated_k{};    // out, rotated keys as they go into products but rounded just once, f32 |
                                            // bf16 | f16: [batch, num_kv_heads, kv_len, head_dim], or with k_slots the
                                            // pages of a cache [num_pages, num_kv_heads, page_size, head_dim]
  std::span<const std::int64_t> k_slots{};  // [batch * kv_len], of the keys: page * page_size + row, all different, or
                                            // -1: not kept
};

/// flash_attention of rotated queries and keys (Su et al., 2021). They are rotated in f32 while their tiles are packed:
/// the rotated tensors never reach memory. Query i has the position of key i + kv_len - q_len. With bf16 keys at levels
/// with bf16 products the rotated values are rounded to bf16, as rotary_embedding's are.
///
/// q     [batch, num_q_heads, q_len, head_dim]     f32 | bf16 | f16, q_len <= kv_len, head_dim >= the table's
/// rotary_dim k, v  [batch, num_kv_heads, kv_len, head_dim or value_dim] out   [batch, num_q_heads, q_len, value_dim]
/// Throws InvalidArgument, as flash_attention and rotary_embedding.
OPS_TRANSFORMER_API void fused_rope_attention(Context& context, const ConstTensorView& q, const ConstTensorView& k,
                                              const ConstTensorView& v, const RopeTable& table, const TensorView& out,
                                              const FusedRopeAttentionOptions& options = {});

}  // namespace ops_transformer
