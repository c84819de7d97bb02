// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "ops_transformer/attention/attention_kernel.h"
#include "ops_transformer/attention/attention_plan.h"
#include "ops_transformer/attention/flash_attention.h"

namespace ops_transformer {

inline constexpr std::int64_t kMaxAttentionLen = std::int64_t{1} << 30, kMaxAttentionBatch = std::int64_t{1} << 20,
                              kMaxAttentionHeads = 65536;

/// The dimensions of a tensor that stand for heads and for tokens.
struct AttentionAxes {
  bool batched;  // [batch or page, head, token, dim], else [token, head, dim]
  int head, token;
};
inline constexpr AttentionAxes kBatchedAxes{true, 1, 2};
inline constexpr AttentionAxes kPackedAxes{false, 1, 0};

/// What the faces of the operator have in common. Names of lengths are those of the face's documentation.
struct AttentionCall {
  const char* op;
  ConstTensorView q, k, v;
  TensorView out;
  AttentionAxes q_axes, kv_axes;
  const FlashAttentionOptions& options;
  const char *q_len_name, *kv_len_name;
  const RopeAngles* rope = nullptr;            // nullptr: no rotation
  const ConstTensorView* positions = nullptr;  // [batch, kv_len]; nullptr: 0, 1, ...
  RotatedKeys rotated{};
  std::int64_t cut_sequence = -1;  // of options.outer_cut

  std::int64_t num_q_heads() const { return q.size(q_axes.head); }
  bool nothing_to_write() const;
  AttentionProblem problem() const;
  AttentionArgs args() const;

  /// All of it but what differs by sequence. Keys in pages have been checked on their own, and queries over them may be
  /// f32. Throws InvalidArgument.
  void validate(bool paged) const;

  /// Sequence b with queries from row `first_q` of packed ones on: where its rows of outputs and grids lie, and where
  /// its mask stands.
  void place_rows(AttentionSequence& sequence, std::int64_t b, std::int64_t first_q) const;

  /// Throws InvalidArgument where options don't fit sequence b.
  void check_sequence(const AttentionSequence& sequence, std::int64_t b) const;
};

/// The batch [batch, heads, len, dim] of a validated call. Throws InvalidArgument.
void run_batched(Context& context, const AttentionCall& call);

/// Throws InvalidArgument "name is value, must be at most limit".
void check_at_most(const char* op, const char* name, std::int64_t value, std::int64_t limit);

}  // namespace ops_transformer
