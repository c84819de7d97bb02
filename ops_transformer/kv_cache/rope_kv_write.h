// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "ops_transformer/base/context.h"
#include "ops_transformer/kv_cache/kv_pool.h"
#include "ops_transformer/posembedding/rope.h"

namespace ops_transformer {

struct RopeKvWriteOptions {
  std::optional<ConstTensorView> q_norm{};  // [head_dim] f32: every head of q is RMS-normalised with it first
  std::optional<ConstTensorView> k_norm{};  // the same of k
  float norm_eps = 1e-6f;                   // 0 … 1
};

/// rotary_embedding of queries and keys and kv_write in one pass over the tokens: q is rotated in place, k is rotated
/// in f32 and goes to its slot with one rounding, v beside it. k itself stays as it was. Heads are normalised
/// (Qwen 3, Gemma 3) in the same pass, without a rounding between.
///
/// q          [num_tokens, num_q_heads, head_dim]   f32 | bf16, last dimension contiguous (of every tensor)
/// k          [num_tokens, num_kv_heads, head_dim]  dtype of q
/// v          [num_tokens, num_kv_heads, value_dim] dtype of q
/// positions  [num_tokens]  i32 | i64, from -2^31 to 2^31
/// slots      [num_tokens]  as in kv_write; -1: nothing is written for the token, its q is rotated all the same
/// q overlaps neither k nor v; all three may be columns of one row per token.
/// Throws InvalidArgument, which names the argument; then nothing has been written.
OPS_TRANSFORMER_API void rope_kv_write(Context& context, const TensorView& q, const ConstTensorView& k,
                                       const ConstTensorView& v, const ConstTensorView& positions,
                                       const RopeTable& table, std::span<const std::int64_t> slots,
                                       const KvPages& pages, const RopeKvWriteOptions& options = {});

}  // namespace ops_transformer
