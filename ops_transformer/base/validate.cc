// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/base/validate.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace ops_transformer {

void invalid(std::string_view operation, std::string_view message) {
  throw InvalidArgument(fmt::format("{}: {}", operation, message));
}

void check_rank(std::string_view operation, std::string_view name, const ConstTensorView& view, int rank) {
  if (view.rank() != rank) {
    invalid(operation, fmt::format("{} must have {} dimensions, got {}: {}", name, rank, view.rank(), describe(view)));
  }
}

void check_dtype(std::string_view operation, std::string_view name, const ConstTensorView& view,
                 std::initializer_list<DType> allowed) {
  if (std::ranges::find(allowed, view.dtype()) == allowed.end()) {
    std::vector<std::string_view> names;
    for (DType dtype : allowed) names.push_back(dtype_name(dtype));
    invalid(operation, fmt::format("{} must be {}, got {}", name, fmt::join(names, " or "), dtype_name(view.dtype())));
  }
}

void check_shape(std::string_view operation, std::string_view name, const ConstTensorView& view,
                 std::initializer_list<std::int64_t> shape) {
  check_rank(operation, name, view, int(shape.size()));
  int dim = 0;
  for (std::int64_t size : shape) {
    if (size >= 0 && view.size(dim) != size) {
      invalid(operation,
              fmt::format("{} must be [{}] (-1: any), got {}", name, fmt::join(shape, ", "), describe(view)));
    }
    ++dim;
  }
}

void check_rows(std::string_view operation, std::string_view name, const ConstTensorView& view) {
  if (!view.rows_contiguous()) {
    invalid(operation, fmt::format("the last dimension of {} must be contiguous, got stride {}", name,
                                   view.stride(view.rank() - 1)));
  }
}

void check_no_overlap(std::string_view operation, std::string_view out_name, const ConstTensorView& out,
                      std::string_view in_name, const ConstTensorView& in) {
  if (!overlaps(out, in)) return;
  const ByteRange o = byte_range(out), i = byte_range(in);
  invalid(operation, fmt::format("{} must not overlap {}: they are the bytes {} to {} and {} to {}", out_name, in_name,
                                 fmt::ptr(o.begin), fmt::ptr(o.end), fmt::ptr(i.begin), fmt::ptr(i.end)));
}

void check_in_place_or_apart(std::string_view operation, std::string_view out_name, const ConstTensorView& out,
                             std::string_view in_name, const ConstTensorView& in) {
  if (!same_place(out, in)) check_no_overlap(operation, out_name, out, in_name, in);
}

void check_output(std::string_view operation, std::string_view name, const ConstTensorView& out) {
  if (std::ranges::count(out.shape(), 0) > 0) return;
  const auto step = [&](int dim) {
    const auto stride = std::uint64_t(out.stride(dim));
    return out.stride(dim) < 0 ? 0 - stride : stride;
  };
  for (int dim = 0; dim < out.rank(); ++dim) {
    if (out.size(dim) <= 1) continue;
    std::uint64_t reach = 1, more = 0;
    for (int other = 0; other < out.rank(); ++other) {
      const bool inside = step(other) < step(dim) || (step(other) == step(dim) && other > dim);
      if (out.size(other) <= 1 || !inside) continue;
      if (__builtin_mul_overflow(std::uint64_t(out.size(other) - 1), step(other), &more) ||
          __builtin_add_overflow(reach, more, &reach)) {
        reach = UINT64_MAX;
        break;
      }
    }
    if (step(dim) < reach) {
      invalid(operation, fmt::format("{} has stride {} in dimension {} of size {}, must be at least {}: its elements "
                                     "would share memory",
                                     name, out.stride(dim), dim, out.size(dim), reach));
    }
  }
}

}  // namespace ops_transformer
