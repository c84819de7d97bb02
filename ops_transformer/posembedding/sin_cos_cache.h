// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "ops_transformer/base/context.h"
#include "ops_transformer/base/error.h"
#include "ops_transformer/base/tensor_view.h"
#include "ops_transformer/posembedding/rope.h"

namespace ops_transformer {

struct SinCosCacheOptions {
  RopeStyle style = RopeStyle::half_split;
  // Multimodal RoPE (Qwen2-VL, 2024): how many pairs turn by each row of positions; together rotary_dim / 2. Empty: one
  // row.
  std::span<const std::int64_t> sections{};
  // Sections stand in turn instead of one after another: pairs 1, 4, 7 ... below 3 * sections[1] turn by row 1, pairs
  // 2, 5, 8 ... below 3 * sections[2] by row 2, all others by row 0. Three sections.
  bool interleaved_sections = false;
};

/// rotary_embedding of queries and keys with angles out of the caller's cache, which holds a row of cosines and sines
/// for each position.
///
/// positions  [tokens], with sections [sections, tokens]  i32 | i64, from 0 to cache_len - 1
/// cache      [cache_len, rotary_dim]  f32 | bf16 | f16: cosines of all pairs, then sines; rows contiguous; rotary_dim
/// even q, k       [tokens, heads, head_dim]  f32 | bf16 | f16, head_dim >= rotary_dim, last dimension contiguous
/// q_out, k_out  as q and k: each in place or apart from all inputs
/// Throws InvalidArgument, which names the argument; then nothing has been written.
OPS_TRANSFORMER_API void rope_with_sin_cos_cache(Context& context, const ConstTensorView& positions,
                                                 const ConstTensorView& cache, const ConstTensorView& q,
                                                 const TensorView& q_out, const ConstTensorView& k,
                                                 const TensorView& k_out, const SinCosCacheOptions& options = {});

}  // namespace ops_transformer
