// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/attention/merge_attention.h"

#include <fmt/format.h>

#include <cmath>

#include "ops_transformer/attention/attention_kernel.h"
#include "ops_transformer/base/validate.h"
#include "ops_transformer/profiler/profiler.h"

namespace ops_transformer {
namespace {

constexpr const char* kOp = "merge_attention";

void validate(std::span<const AttentionPartial> parts, const TensorView& out, const std::optional<TensorView>& lse) {
  check_rank(kOp, "out", out, 2);
  check_dtype(kOp, "out", out, {DType::f32, DType::bf16, DType::f16});
  check_rows(kOp, "out", out);
  check_output(kOp, "out", out);
  if (lse) {
    check_shape(kOp, "lse", *lse, {out.size(0)});
    check_dtype(kOp, "lse", *lse, {DType::f32});
    check_output(kOp, "lse", *lse);
    check_no_overlap(kOp, "lse", *lse, "out", out);
  }
  for (std::size_t p = 0; p < parts.size(); ++p) {
    const std::string out_name = fmt::format("parts[{}].out", p), lse_name = fmt::format("parts[{}].lse", p);
    check_shape(kOp, out_name, parts[p].out, {out.size(0), out.size(1)});
    check_dtype(kOp, out_name, parts[p].out, {DType::f32, DType::bf16, DType::f16});
    check_rows(kOp, out_name, parts[p].out);
    check_shape(kOp, lse_name, parts[p].lse, {out.size(0)});
    check_dtype(kOp, lse_name, parts[p].lse, {DType::f32});
    check_in_place_or_apart(kOp, "out", out, out_name, parts[p].out);
    check_no_overlap(kOp, "out", out, lse_name, parts[p].lse);
    if (!lse) continue;
    check_no_overlap(kOp, "lse", *lse, out_name, parts[p].out);
    check_in_place_or_apart(kOp, "lse", *lse, lse_name, parts[p].lse);
  }
}

Work work_of(std::span<const AttentionPartial> parts, const TensorView& out) {
  const std::int64_t values = out.num_elements(), rows = out.size(0);
  Work work{.bytes = values * std::int64_t(element_bytes(out.dtype())) + rows * 4,
            .flops = 2 * values * std::int64_t(parts.size())};
  for (const AttentionPartial& part : parts) {
    work.bytes += values * std::int64_t(element_bytes(part.out.dtype())) + rows * 4;
  }
  return work;
}

}  // namespace

void merge_attention(Context& context, std::span<const AttentionPartial> parts, const TensorView& out,
                     const std::optional<TensorView>& lse) {
  validate(parts, out, lse);
  const std::int64_t rows = out.size(0), num_parts = std::int64_t(parts.size());
  const int value_dim = int(out.size(1));
  Zone zone(context, kOp, context.profiler() ? work_of(parts, out) : Work{});
  CallScope call(context);
  const auto states = call.arena().allocate<AttentionPart>(std::size_t(call.num_threads() * num_parts));
  const auto weights = call.arena().allocate<float>(std::size_t(call.num_threads() * num_parts));
  MergeRowFn* merge_row = merge_attention_row.at(context.isa());
  call.parallel_rows(rows, num_parts * value_dim, [&](std::int64_t first, std::int64_t last, int worker) {
    AttentionPart* state = states.data() + worker * num_parts;
    for (std::int64_t row = first; row < last; ++row) {
      for (std::int64_t p = 0; p < num_parts; ++p) {
        const auto& [part_out, part_lse] = parts[std::size_t(p)];
        const float m = part_lse.as<float>()[row * part_lse.stride(0)];
        const auto* o = static_cast<const std::byte*>(part_out.data()) +
                        row * part_out.stride(0) * std::int64_t(element_bytes(part_out.dtype()));
        // A part whose lse is NaN has to show, whatever the other parts are.
        state[p] = {o, part_out.dtype(), m, std::isnan(m) ? m : std::isinf(m) && m < 0 ? 0.0f : 1.0f};
      }
      merge_row(state, int(num_parts), {1.44269504f, 1.0f},
                {out.data(),
                 out.dtype(),
                 row * out.stride(0),
                 value_dim,
                 {lse ? lse->as<float>() + row * lse->stride(0) : nullptr, nullptr, nullptr},
                 1.0f},
                weights.data() + worker * num_parts);
    }
  });
}

}  // namespace ops_transformer
