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

RotatedKeys rotated_keys(const AttentionCall& call, const FusedRopeAttentionOptions& options) {
  if (!options.rotated_k) {
    if (!options.k_slots.empty()) invalid(kOp, "k_slots is given and needs rotated_k");
    return {};
  }
  const TensorView& to = *options.rotated_k;
  const std::int64_t batch = call.k.size(0), heads = call.k.size(1), kv_len = call.k.size(2), dim = call.k.size(3);
  const bool paged = !options.k_slots.empty();
  check_shape(kOp, "rotated_k", to, {paged ? -1 : batch, heads, paged ? -1 : kv_len, dim});
  check_dtype(kOp, "rotated_k", to, {DType::f32, DType::bf16, DType::f16});
  check_rows(kOp, "rotated_k", to);
  check_output(kOp, "rotated_k", to);
  check_no_overlap(kOp, "rotated_k", to, "out", call.out);
  for (const auto& [name, view] : {std::pair{"q", &call.q}, {"k", &call.k}, {"v", &call.v}}) {
    check_no_overlap(kOp, "rotated_k", to, name, *view);
  }
  if (options.lse) check_no_overlap(kOp, "rotated_k", to, "lse", *options.lse);
  if (options.positions) check_no_overlap(kOp, "rotated_k", to, "positions", *options.positions);
  if (paged && std::int64_t(options.k_slots.size()) != batch * kv_len) {
    invalid(kOp, fmt::format("k_slots has {} entries, must have batch * kv_len = {}", options.k_slots.size(),
                             batch * kv_len));
  }
  for (std::size_t i = 0; i < options.k_slots.size(); ++i) {
    const std::int64_t slot = options.k_slots[i], num_slots = to.size(0) * to.size(2);
    if (slot < -1 || slot >= num_slots) {
      invalid(kOp, fmt::format("k_slots[{}] is {}, must be -1 or from 0 to {}", i, slot, num_slots - 1));
    }
  }
  if (call.nothing_to_write() && call.k.num_elements() > 0) {
    invalid(kOp, "rotated_k is given and needs a query and a value: keys are rotated where they are used");
  }
  return {to.data(),    to.dtype(),  paged ? options.k_slots.data() : nullptr, to.size(2), to.stride(0),
          to.stride(1), to.stride(2)};
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
  call.rotated = rotated_keys(call, options);
  run_batched(context, call);
}

}  // namespace ops_transformer
