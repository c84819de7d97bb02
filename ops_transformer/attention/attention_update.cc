// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/attention/attention_update.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "ops_transformer/attention/attention_kernel.h"
#include "ops_transformer/base/validate.h"
#include "ops_transformer/profiler/profiler.h"

namespace ops_transformer {
namespace {

constexpr int kMostLeading = 3;

// One of the results besides out; parts hold the same in the same order.
struct NamedView {
  const char* name;
  TensorView view;
};

// The leading dimensions must be those of `out`; `last`: of one more, -1 for none.
void check_like(const char* op, const std::string& name, const ConstTensorView& view, const TensorView& out,
                std::int64_t last) {
  const int leading = out.rank() - 1;
  bool same = view.rank() == leading + (last >= 0);
  for (int d = 0; same && d < leading; ++d) same = view.size(d) == out.size(d);
  if (!same || (last >= 0 && view.size(leading) != last)) {
    std::string wanted;
    for (int d = 0; d < leading; ++d) wanted += fmt::format("{}{}", d ? ", " : "", out.size(d));
    if (last >= 0) wanted += fmt::format(", {}", last);
    invalid(op, fmt::format("{} must be [{}], got {}", name, wanted, describe(view)));
  }
}

void check_out(const char* op, const TensorView& out) {
  if (out.rank() < 2 || out.rank() > kMostLeading + 1) {
    invalid(op, fmt::format("out must have 2 to {} dimensions, got {}", kMostLeading + 1, describe(out)));
  }
  check_dtype(op, "out", out, {DType::f32, DType::bf16, DType::f16});
  check_rows(op, "out", out);
  check_output(op, "out", out);
}

// sums: lse, or maximum and sum; views_of(p): out of part p and what it has of the sums. Gives the bytes of all parts.
template <std::size_t N, class ViewsOf>
std::int64_t validate(const char* op, const TensorView& out, std::span<const NamedView> sums, std::int64_t sums_last,
                      std::size_t num_parts, const std::array<const char*, N>& names, const ViewsOf& views_of) {
  std::int64_t bytes = 0;
  check_out(op, out);
  for (std::size_t s = 0; s < sums.size(); ++s) {
    check_like(op, sums[s].name, sums[s].view, out, sums_last);
    check_dtype(op, sums[s].name, sums[s].view, {DType::f32});
    if (sums_last >= 0) check_rows(op, sums[s].name, sums[s].view);
    check_output(op, sums[s].name, sums[s].view);
    check_no_overlap(op, sums[s].name, sums[s].view, "out", out);
    for (std::size_t other = 0; other < s; ++other) {
      check_no_overlap(op, sums[s].name, sums[s].view, sums[other].name, sums[other].view);
    }
  }
  for (std::size_t p = 0; p < num_parts; ++p) {
    const std::array<ConstTensorView, N> views = views_of(p);
    for (std::size_t i = 0; i < N; ++i) {
      const std::string name = fmt::format("parts[{}].{}", p, names[i]);
      const ConstTensorView& view = views[i];
      bytes += view.num_elements() * std::int64_t(element_bytes(view.dtype()));
      check_like(op, name, view, out, i == 0 ? out.size(out.rank() - 1) : sums_last);
      if (i == 0) {
        check_dtype(op, name, view, {DType::f32, DType::bf16, DType::f16});
        check_rows(op, name, view);
        check_in_place_or_apart(op, "out", out, name, view);
      } else {
        check_dtype(op, name, view, {DType::f32});
        check_no_overlap(op, "out", out, name, view);
      }
      for (std::size_t s = 0; s < sums.size(); ++s) {
        if (s + 1 == i) {
          check_in_place_or_apart(op, sums[s].name, sums[s].view, name, view);
        } else {
          check_no_overlap(op, sums[s].name, sums[s].view, name, view);
        }
      }
    }
  }
  return bytes;
}

struct RowIndex {
  std::array<std::int64_t, kMostLeading> at;
};
RowIndex row_index(const TensorView& out, std::int64_t row) {
  RowIndex index{};
  for (int d = out.rank() - 2; d >= 0; --d) {
    index.at[std::size_t(d)] = row % out.size(d);
    row /= out.size(d);
  }
  return index;
}
template <class View>
std::int64_t offset_of(const View& view, const RowIndex& index, int leading) {
  std::int64_t offset = 0;
  for (int d = 0; d < leading; ++d) offset += index.at[std::size_t(d)] * view.stride(d);
  return offset;
}

// part(p, index) gives a part of a row, softmax(index) where the sums of the row go.
template <class Part, class Softmax>
void merge_rows(Context& context, const char* op, std::int64_t num_parts, std::int64_t part_bytes,
                const TensorView& out, AttentionUnits units, const Part& part, const Softmax& softmax) {
  const std::int64_t value_dim = out.size(out.rank() - 1);
  std::int64_t rows = 1;
  for (int d = 0; d + 1 < out.rank(); ++d) rows *= out.size(d);
  const std::int64_t values = rows * value_dim;
  Zone zone(context, op,
            {.bytes = part_bytes + values * std::int64_t(element_bytes(out.dtype())), .flops = 2 * values * num_parts});
  CallScope call(context);
  const auto states = call.arena().allocate<AttentionPart>(std::size_t(call.num_threads() * num_parts));
  const auto weights = call.arena().allocate<float>(std::size_t(call.num_threads() * num_parts));
  MergeRowFn* merge_row = merge_attention_row.at(context.isa());
  call.parallel_rows(rows, num_parts * value_dim, [&](std::int64_t first, std::int64_t last, int worker) {
    AttentionPart* state = states.data() + worker * num_parts;
    for (std::int64_t row = first; row < last; ++row) {
      const RowIndex index = row_index(out, row);
      for (std::int64_t p = 0; p < num_parts; ++p) state[p] = part(std::size_t(p), index);
      merge_row(state, int(num_parts), units,
                {out.data(), out.dtype(), offset_of(out, index, out.rank() - 1), int(value_dim), softmax(index), 1.0f},
                weights.data() + worker * num_parts);
    }
  });
}

// An empty part has l 0. One whose sums are NaN has to show, whatever the other parts are.
AttentionPart part_of(const ConstTensorView& out, const RowIndex& index, float m, float l) {
  const auto* o = static_cast<const std::byte*>(out.data()) +
                  offset_of(out, index, out.rank() - 1) * std::int64_t(element_bytes(out.dtype()));
  if (std::isnan(m) || std::isnan(l)) m = l = std::numeric_limits<float>::quiet_NaN();
  return {o, out.dtype(), m, l, l};
}

}  // namespace

void attention_update(Context& context, std::span<const AttentionPartial> parts, const TensorView& out,
                      const std::optional<TensorView>& lse) {
  constexpr const char* kOp = "attention_update";
  const NamedView sums[1] = {{"lse", lse.value_or(TensorView{})}};
  const std::int64_t bytes = validate<2>(kOp, out, std::span(sums, lse ? 1 : 0), -1, parts.size(), {"out", "lse"},
                                         [&](std::size_t p) { return std::array{parts[p].out, parts[p].lse}; });
  const auto part = [&](std::size_t p, const RowIndex& index) {
    const float m = parts[p].lse.as<float>()[offset_of(parts[p].lse, index, out.rank() - 1)];
    return part_of(parts[p].out, index, m, std::isinf(m) ? 0.0f : 1.0f);
  };
  const auto softmax = [&](const RowIndex& index) {
    float* at = lse ? lse->as<float>() + offset_of(*lse, index, out.rank() - 1) : nullptr;
    return SoftmaxPlaces{at, nullptr, nullptr};
  };
  merge_rows(context, kOp, std::int64_t(parts.size()), bytes, out, {1.44269504f, 1.0f}, part, softmax);
}

void ring_attention_update(Context& context, std::span<const RingAttentionPartial> parts, const TensorView& out,
                           const TensorView& softmax_max, const TensorView& softmax_sum) {
  constexpr const char* kOp = "ring_attention_update";
  const NamedView sums[2] = {{"softmax_max", softmax_max}, {"softmax_sum", softmax_sum}};
  const std::int64_t bytes =
      validate<3>(kOp, out, sums, 8, parts.size(), {"out", "softmax_max", "softmax_sum"},
                  [&](std::size_t p) { return std::array{parts[p].out, parts[p].softmax_max, parts[p].softmax_sum}; });
  const int leading = out.rank() - 1;
  const auto part = [&](std::size_t p, const RowIndex& index) {
    const float m = parts[p].softmax_max.as<float>()[offset_of(parts[p].softmax_max, index, leading)];
    const float l = parts[p].softmax_sum.as<float>()[offset_of(parts[p].softmax_sum, index, leading)];
    const bool empty = l == std::numeric_limits<float>::max() || (std::isinf(m) && m < 0);
    return part_of(parts[p].out, index, m, empty ? 0.0f : l);
  };
  const auto softmax = [&](const RowIndex& index) {
    return SoftmaxPlaces{nullptr, softmax_max.as<float>() + offset_of(softmax_max, index, leading),
                         softmax_sum.as<float>() + offset_of(softmax_sum, index, leading)};
  };
  merge_rows(context, kOp, std::int64_t(parts.size()), bytes, out, {1.44269504f, 1.0f}, part, softmax);
}

}  // namespace ops_transformer
