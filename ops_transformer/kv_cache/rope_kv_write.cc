// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/kv_cache/rope_kv_write.h"

#include <fmt/format.h>

#include <utility>

#include "ops_transformer/base/validate.h"
#include "ops_transformer/kv_cache/kv_validate.h"
#include "ops_transformer/kv_cache/rope_kv_write_kernel.h"
#include "ops_transformer/posembedding/rope_validate.h"
#include "ops_transformer/profiler/profiler.h"

namespace ops_transformer {
namespace {

constexpr const char* kOp = "rope_kv_write";

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
              const RopeTable& table, std::span<const std::int64_t> slots, const KvPages& pages,
              const RopeKvWriteOptions& options) {
  check_new_rows(kOp, k, v, slots, pages);
  check_shape(kOp, "q", q, {k.size(0), -1, k.size(2)});
  check_dtype(kOp, "q", q, {k.dtype()});
  check_rows(kOp, "q", q);
  check_output(kOp, "q", q);
  check_rotation(kOp, q, positions, table.rotary_dim());
  if (!are_columns_of_one_row(q, k)) check_no_overlap(kOp, "q", q, "k", k);
  if (!are_columns_of_one_row(q, v)) check_no_overlap(kOp, "q", q, "v", v);
  check_no_overlap(kOp, "q", q, "positions", positions);
  for (const TensorView* plane : {&pages.k, &pages.v}) {
    check_no_overlap(kOp, "pages", *plane, "q", q);
    check_no_overlap(kOp, "pages", *plane, "positions", positions);
  }
  check_positions(kOp, positions, -RopeTable::kMaxPosition, RopeTable::kMaxPosition);
  for (const auto& [name, norm] : {std::pair{"q_norm", options.q_norm}, {"k_norm", options.k_norm}}) {
    if (!norm) continue;
    check_shape(kOp, name, *norm, {k.size(2)});
    check_dtype(kOp, name, *norm, {DType::f32});
    check_rows(kOp, name, *norm);
    check_no_overlap(kOp, "q", q, name, *norm);
    for (const TensorView* plane : {&pages.k, &pages.v}) check_no_overlap(kOp, "pages", *plane, name, *norm);
  }
  if (!(options.norm_eps >= 0.0f && options.norm_eps <= 1.0f)) {
    invalid(kOp, fmt::format("norm_eps is {}, must be from 0 to 1", options.norm_eps));
  }
}

}  // namespace

void rope_kv_write(Context& context, const TensorView& q, const ConstTensorView& k, const ConstTensorView& v,
                   const ConstTensorView& positions, const RopeTable& table, std::span<const std::int64_t> slots,
                   const KvPages& pages, const RopeKvWriteOptions& options) {
  validate(q, k, v, positions, table, slots, pages, options);
  RopeKvWriteArgs args{};
  args.q = rope_args(q, positions, q, table.angles());
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
  args.q_norm = options.q_norm ? options.q_norm->as<float>() : nullptr;
  args.k_norm = options.k_norm ? options.k_norm->as<float>() : nullptr;
  args.norm_eps = options.norm_eps;
  const auto num_tokens = std::int64_t(slots.size());
  const std::int64_t rotated = (q.size(1) + k.size(1)) * q.size(2), copied = v.size(1) * v.size(2);
  const auto new_bytes = std::int64_t(element_bytes(q.dtype())),
             kept_bytes = std::int64_t(element_bytes(pages.k.dtype()));
  Zone zone(context, kOp,
            {.bytes = num_tokens * ((rotated + copied + q.size(1) * q.size(2)) * new_bytes +
                                    (k.size(1) * k.size(2) + copied) * kept_bytes),
             .flops = num_tokens * ((q.size(1) + k.size(1)) * args.q.angles.half * 6 +
                                    ((args.q_norm ? q.size(1) : 0) + (args.k_norm ? k.size(1) : 0)) * q.size(2) * 4)});
  CallScope call(context);
  RopeKvWriteFn* kernel = rope_kv_write_tokens.at(context.isa());
  const std::size_t scratch_len = align_up(std::size_t(2 * args.q.angles.half + q.size(2)), 16);
  const auto scratch = call.arena().allocate<float>(std::size_t(call.num_threads()) * scratch_len);
  call.parallel_rows(num_tokens, rotated + copied, [&](std::int64_t first, std::int64_t last, int worker) {
    kernel(args, first, last, scratch.data() + std::size_t(worker) * scratch_len);
  });
}

}  // namespace ops_transformer
