// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/base/validate.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
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
  if (overlaps(out, in)) invalid(operation, fmt::format("{} must not overlap {}", out_name, in_name));
}

}  // namespace ops_transformer
