// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "ops_transformer/attention/flash_attention.h"
#include "ops_transformer/base/context.h"
#include "ops_transformer/base/error.h"
#include "ops_transformer/base/tensor_view.h"
#include "ops_transformer/gemm/linear.h"
#include "ops_transformer/kv_cache/kv_pool.h"
#include "ops_transformer/norm/norm_linear.h"
#include "ops_transformer/posembedding/rope.h"

namespace ops_transformer {

struct AttentionShape {
  std::int64_t num_q_heads = 0, num_kv_heads = 0;  // num_q_heads % num_kv_heads == 0
  std::int64_t head_dim = 0;
  std::int64_t value_dim = 0;                    // 0: head_dim
  RopeStyle rope_style = RopeStyle::half_split;  // of the tables that heads will be rotated with
};

/// The four matrices of an attention sublayer, packed once: queries, keys and values in one matmul, whose outputs stand
/// so that both elements of a pair are finished together.
class OPS_TRANSFORMER_API AttentionWeights {
 public:
  /// wq  [num_q_heads * head_dim, hidden]    f32 | bf16 | f16 | block-quantised, one dtype, rows contiguous
  /// wk  [num_kv_heads * head_dim, hidden]   dtype of wq
  /// wv  [num_kv_heads * value_dim, hidden]  dtype of wq
  /// wo  [hidden, num_q_heads * value_dim]   f32 | bf16 | f16 | block-quantised
  /// Outputs of wq and wk are a multiple of 16. Throws InvalidArgument.
  static AttentionWeights pack(Context& context, const ConstTensorView& wq, const ConstTensorView& wk,
                               const ConstTensorView& wv, const ConstTensorView& wo, const AttentionShape& shape);

  const AttentionShape& shape() const noexcept { return shape_; }
  std::int64_t hidden() const noexcept { return qkv_.num_inputs(); }
  std::size_t bytes() const noexcept { return qkv_.bytes() + output_.bytes(); }
  const PackedWeights& qkv() const noexcept { return qkv_; }
  const PackedWeights& output() const noexcept { return output_; }
  /// Heads are rotated in the matmul: head_dim is a multiple of 32.
  bool paired() const noexcept { return paired_; }

 private:
  AttentionShape shape_;
  PackedWeights qkv_, output_;
  bool paired_ = false;
};

struct AttentionBlockOptions {
  std::optional<RowNorm> norm{};     // of x, before the projections
  bool residual_connection = false;  // out = x + the rest
  // Rotation of queries and keys; both or neither. Positions [tokens], i32 | i64, from -2^31 to 2^31.
  const RopeTable* rope = nullptr;
  std::optional<ConstTensorView> positions{};
  // Sequences packed one after another: offsets as in flash_attention_varlen. Empty: all tokens are one sequence.
  std::span<const std::int64_t> offsets{};
  // The cache: new keys and values go to their slots, queries see all keys of their sequence. All three or none.
  const KvPages* pages = nullptr;
  std::span<const std::int64_t> slots{};  // [tokens]; -1: not written
  const PagedKvView* cache = nullptr;     // with the new tokens in its lengths
  bool causal = false;
  std::optional<float> softmax_scale{};  // unset: 1 / sqrt(head_dim)
  std::int64_t window = kNoWindow;       // with causal
  float logit_soft_cap = 0.0f;
  Arithmetic arithmetic = Arithmetic::fast;
};

/// Attention sublayer of a transformer: out = x + attention(rotated heads of norm(x)) wo^T. What leaves the caches
/// between the steps: queries, keys and values once, as they come out of one matmul that normalises its rows as it
/// reads them and rotates heads and writes the cache from its finished tiles; the attended heads once; the sum with x
/// in the last epilogue. Queries, keys and attended heads are rounded to the dtype of x (with a cache of another dtype:
/// f32 queries, keys and values to the cache's). Where head_dim is no multiple of 32, or the table rotates a part of
/// it, the rotation is a pass of its own.
///
/// x    [tokens, hidden]  f32 | bf16 | f16, last dimension contiguous
/// out  [tokens, hidden]  dtype of x; overlaps no input
/// Throws InvalidArgument, which names the argument; then nothing has been written.
OPS_TRANSFORMER_API void attention_block(Context& context, const ConstTensorView& x, const AttentionWeights& weights,
                                         const TensorView& out, const AttentionBlockOptions& options = {});

}  // namespace ops_transformer
