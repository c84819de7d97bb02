// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/kv_cache/rope_kv_write.h"

#include <fmt/format.h>

#include <algorithm>

#include "ops_transformer/base/validate.h"
#include "ops_transformer/kv_cache/kv_validate.h"
#include "ops_transformer/kv_cache/rope_kv_write_kernel.h"
#include "ops_transformer/profiler/profiler.h"

namespace ops_transformer {
namespace {

constexpr const char* kOp = "rope_kv_write";
// Elements that one item moves; below it a fork costs more than it saves.
constexpr std::int64_t kElementsPerItem = 16384;

// True where each token's row of `a` and of `b` are different columns of one wide row, as a stacked projection gives
// them.
bool are_columns_of_one_row(const ConstTensorView& a, const ConstTensorView& b) {
  const std::int64_t stride = a.stride(0);
  if (a.dtype() != b.dtype() || b.stride(0) != stride || stride <= 0 || a.stride(1) < 0 || b.stride(1) < 0)
    return false;
  const auto extent = [](const ConstTensorView& view) { return (view.size(1) - 1) * view.stride(1) + view.size(2); };
  const std::int64_t bytes = static_cast<const std::byte*>(b.data()) - static_cast<const std::byte*>(a.data());
  const auto element = std::int64_t(element_bytes(a.dtype()));
  if (bytes % element != 0) return false;
  const std::int64_t column = (bytes / element % stride + stride) % stride;
  return column >= extent(a) && column + extent(b) <= stride;
}

void validate(const TensorView& q, const ConstTensorView& k, const ConstTensorView& v, const ConstTensorView& positions,
              const RopeTable& table, std::span<const std::int64_t> slots, const KvPages& pages) {
  check_new_rows(kOp, k, v, slots, pages);
  check_shape(kOp, "q", q, {k.size(0), -1, k.size(2)});
  check_dtype(kOp, "q", q, {k.dtype()});
  check_rows(kOp, "q", q);
  check_shape(kOp, "positions", positions, {k.size(0)});
  check_dtype(kOp, "positions", positions, {DType::i32, DType::i64});
  if (table.rotary_dim() > k.size(2)) {
    invalid(kOp, fmt::format("rotary_dim is {}, must be at most head_dim = {}", table.rotary_dim(), k.size(2)));
  }
  if (!are_columns_of_one_row(q, k)) check_no_overlap(kOp, "q", q, "k", k);
  if (!are_columns_of_one_row(q, v)) check_no_overlap(kOp, "q", q, "v", v);
  check_no_overlap(kOp, "q", q, "positions", positions);
  for (const TensorView* plane : {&pages.k, &pages.v}) {
    check_no_overlap(kOp, "pages", *plane, "q", q);
    check_no_overlap(kOp, "pages", *plane, "positions", positions);
  }
}

}  // namespace

void rope_kv_write(Context& context, const TensorView& q, const ConstTensorView& k, const ConstTensorView& v,
                   const ConstTensorView& positions, const RopeTable& table, std::span<const std::int64_t> slots,
                   const KvPages& pages) {
  validate(q, k, v, positions, table, slots, pages);
  RopeKvWriteArgs args{};
  args.q = {.x = q.data(),
            .out = q.data(),
            .positions = positions.data(),
            .num_heads = q.size(1),
            .head_dim = q.size(2),
            .x_token_stride = q.stride(0),
            .x_head_stride = q.stride(1),
            .out_token_stride = q.stride(0),
            .out_head_stride = q.stride(1),
            .position_stride = positions.stride(0),
            .angles = table.angles(),
            .dtype = q.dtype(),
            .position_dtype = positions.dtype()};
  args.k = copy_args(k, pages.k);
  args.v = copy_args(v, pages.v);
  args.k_token_stride = k.stride(0);
  args.v_token_stride = v.stride(0);
  args.k_page_stride = pages.k.stride(0);
  args.k_slot_stride = pages.k.stride(2);
  args.v_page_stride = pages.v.stride(0);
  args.v_slot_stride = pages.v.stride(2);
  args.page_size = pages.k.size(2);
  args.slots = slots.data();
  const auto num_tokens = std::int64_t(slots.size());
  for (std::int64_t token = 0; token < num_tokens; ++token) {
    const std::int64_t position = rope_position(args.q, token);
    if (position < -RopeTable::kMaxPosition || position > RopeTable::kMaxPosition) {
      invalid(kOp, fmt::format("positions[{}] is {}, must be from {} to {}", token, position, -RopeTable::kMaxPosition,
                               RopeTable::kMaxPosition));
    }
  }
  const std::int64_t rotated = (q.size(1) + k.size(1)) * q.size(2), copied = v.size(1) * v.size(2);
  const auto new_bytes = std::int64_t(element_bytes(q.dtype())),
             kept_bytes = std::int64_t(element_bytes(pages.k.dtype()));
  Zone zone(context, kOp,
            {.bytes = num_tokens * ((rotated + copied + q.size(1) * q.size(2)) * new_bytes +
                                    (k.size(1) * k.size(2) + copied) * kept_bytes),
             .flops = num_tokens * (q.size(1) + k.size(1)) * args.q.angles.half * 6});
  CallScope call(context);
  RopeKvWriteFn* kernel = rope_kv_write_tokens.at(context.isa());
  const std::int64_t per_item =
      std::max<std::int64_t>(1, kElementsPerItem / std::max<std::int64_t>(1, rotated + copied));
  const std::size_t scratch_len = align_up(std::size_t(2 * args.q.angles.half), 16);
  const auto scratch = call.arena().allocate<float>(std::size_t(call.num_threads()) * scratch_len);
  call.parallel_for(std::size_t((num_tokens + per_item - 1) / per_item), [&](std::size_t item, int worker) {
    const std::int64_t first = std::int64_t(item) * per_item;
    kernel(args, first, std::min(num_tokens, first + per_item), scratch.data() + std::size_t(worker) * scratch_len);
  });
}

}  // namespace ops_transformer
