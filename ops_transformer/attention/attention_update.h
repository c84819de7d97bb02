// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <span>

#include "ops_transformer/base/context.h"
#include "ops_transformer/base/error.h"
#include "ops_transformer/base/tensor_view.h"

// Attention over all keys from its results over disjoint parts of them: the merge that decode uses after a split of the
// keys (Milakov and Gimelshein, 2018; Liu et al., Ring Attention, 2023). Shapes [...] are one to three dimensions, such
// as flash_attention's [batch, num_q_heads, q_len] or [rows], with any strides.
namespace ops_transformer {

/// The result over part of the keys, as flash_attention gives it.
struct AttentionPartial {
  ConstTensorView out;  // [..., value_dim]  f32 | bf16 | f16, last dimension contiguous
  ConstTensorView lse;  // [...]             f32, natural log
};

/// lse = log(sum(exp(lse_p))), out = sum(out_p exp(lse_p - lse)). A part with lse -inf saw no key and its out is not
/// read; +inf, which inference on Ascend writes for such a row, means the same. Where no part saw one, out is 0 and lse
/// -inf. Where just one did, its out (in out's dtype) and lse keep their bits.
///
/// out  [..., value_dim]  f32 | bf16 | f16; may be one of the parts' out itself, as may lse, overlaps nothing else
/// lse  [...] f32
/// Throws InvalidArgument, which names the argument; past validation nothing fails.
OPS_TRANSFORMER_API void attention_update(Context& context, std::span<const AttentionPartial> parts,
                                          const TensorView& out, const std::optional<TensorView>& lse = {});

/// The result over part of the keys with maximum and sum, as flash_attention gives them.
struct RingAttentionPartial {
  ConstTensorView out;          // [..., value_dim]  f32 | bf16 | f16, last dimension contiguous
  ConstTensorView softmax_max;  // [..., 8] f32, of which the first copy is read
  ConstTensorView softmax_sum;  // [..., 8] f32, the same
};

/// max = max(max_p), sum = sum(sum_p exp(max_p - max)), out = sum(out_p sum_p exp(max_p - max)) / sum. A part whose sum
/// is 0 or FLT_MAX, or whose maximum is -inf, saw no key: its out is not read. Where no part saw one, out is 0, the
/// maximum -inf and the sum 0. Where just one did, its out (in out's dtype), maximum and sum keep their bits.
///
/// out                       as attention_update; may be one of the parts' out itself, as may the others
/// softmax_max, softmax_sum  [..., 8] f32, eight copies
/// Throws InvalidArgument, which names the argument; past validation nothing fails.
OPS_TRANSFORMER_API void ring_attention_update(Context& context, std::span<const RingAttentionPartial> parts,
                                               const TensorView& out, const TensorView& softmax_max,
                                               const TensorView& softmax_sum);

}  // namespace ops_transformer
