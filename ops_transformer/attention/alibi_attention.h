// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "ops_transformer/base/context.h"
#include "ops_transformer/base/error.h"
#include "ops_transformer/base/tensor_view.h"

namespace ops_transformer {

struct AlibiAttentionOptions {
  std::optional<std::int64_t> max_seq_len{};  // the longest q_len or kv_len that is accepted; unset: any
  bool causal = false;
  std::optional<float> softmax_scale{};  // unset: 1 / sqrt(head_dim)
  std::optional<TensorView> lse{};       // out, [batch, num_q_heads, q_len] f32
};

/// flash_attention with ALiBi's bias -slope |i + kv_len - q_len - j| and the slopes of alibi_slopes(num_q_heads). The
/// bias is made in registers: no matrix of it exists.
///
/// q     [batch, num_q_heads, q_len, head_dim]     f32 | bf16 | f16
/// k, v  [batch, num_kv_heads, kv_len, head_dim or value_dim]
/// out   [batch, num_q_heads, q_len, value_dim]
/// Throws InvalidArgument, as flash_attention, and where a length is over max_seq_len.
OPS_TRANSFORMER_API void alibi_attention(Context& context, const ConstTensorView& q, const ConstTensorView& k,
                                         const ConstTensorView& v, const TensorView& out,
                                         const AlibiAttentionOptions& options = {});

}  // namespace ops_transformer
