// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/attention/fused_rope_attention.h"

#include <fmt/format.h>

#include "ops_transformer/attention/attention_call.h"
#include "ops_transformer/base/validate.h"
#include "ops_transformer/posembedding/rope_validate.h"

namespace ops_transformer {
namespace {

constexpr const char* kOp = "fused_rope_attention";

// [batch, kv_len], checked.
ConstTensorView positions_by_batch(const ConstTensorView& positions, std::int64_t batch, std::int64_t kv_len) {
  check_dtype(kOp, "positions", positions, {DType::i32, DType::i64});
  if (positions.rank() == 1) {
    check_shape(kOp, "positions", positions, {kv_len});
    check_positions(kOp, positions, -RopeTable::kMaxPosition, RopeTable::kMaxPosition);
    return {positions.data(), positions.dtype(), {batch, kv_len}, {0, positions.stride(0)}};
  }
  check_shape(kOp, "positions", positions, {batch, kv_len});
  const auto bytes = std::int64_t(element_bytes(positions.dtype()));
  for (std::int64_t b = 0; b < batch; ++b) {
    check_positions(kOp,
                    {positions.as<std::byte>() + b * positions.stride(0) * bytes,
                     positions.dtype(),
                     {kv_len},
                     {positions.stride(1)}},
                    -RopeTable::kMaxPosition, RopeTable::kMaxPosition);
  }
  return positions;
}

}  // namespace

void fused_rope_attention(Context& context, const ConstTensorView& q, const ConstTensorView& k,
                          const ConstTensorView& v, const RopeTable& table, const TensorView& out,
                          const FusedRopeAttentionOptions& options) {
  const FlashAttentionOptions attention{
      .mask = options.causal ? Mask::causal : Mask::none, .softmax_scale = options.softmax_scale, .lse = options.lse};
  const RopeAngles angles = table.angles();
  AttentionCall call{kOp, q, k, v, out, kBatchedAxes, kBatchedAxes, attention, "q_len", "kv_len", &angles, nullptr};
  call.validate(false);
  const std::int64_t batch = q.size(0), q_len = q.size(2), kv_len = k.size(2), head_dim = q.size(3);
  if (q_len > kv_len) {
    invalid(kOp,
            fmt::format("q_len is {}, must be at most kv_len, {}: a query has the position of its key", q_len, kv_len));
  }
  if (table.rotary_dim() > head_dim) {
    invalid(kOp, fmt::format("rotary_dim is {}, must be at most head_dim, {}", table.rotary_dim(), head_dim));
  }
  ConstTensorView positions;
  if (options.positions) {
    positions = positions_by_batch(*options.positions, batch, kv_len);
    check_no_overlap(kOp, "out", out, "positions", *options.positions);
    if (options.lse) check_no_overlap(kOp, "lse", *options.lse, "positions", *options.positions);
    call.positions = &positions;
  }
  run_batched(context, call);
}

}  // namespace ops_transformer
