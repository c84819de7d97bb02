// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string_view>

#include "ops_transformer/base/error.h"
#include "ops_transformer/base/tensor_view.h"

// Checks that every operator's validate step shares. Each throws InvalidArgument naming argument, value and limit.
namespace ops_transformer {

/// Throws "operation: message".
[[noreturn]] OPS_TRANSFORMER_API void invalid(std::string_view operation, std::string_view message);

OPS_TRANSFORMER_API void check_rank(std::string_view operation, std::string_view name, const ConstTensorView& view,
                                    int rank);
OPS_TRANSFORMER_API void check_dtype(std::string_view operation, std::string_view name, const ConstTensorView& view,
                                     std::initializer_list<DType> allowed);
/// -1 in `shape` accepts any size.
OPS_TRANSFORMER_API void check_shape(std::string_view operation, std::string_view name, const ConstTensorView& view,
                                     std::initializer_list<std::int64_t> shape);
/// The last dimension is contiguous.
OPS_TRANSFORMER_API void check_rows(std::string_view operation, std::string_view name, const ConstTensorView& view);
OPS_TRANSFORMER_API void check_no_overlap(std::string_view operation, std::string_view out_name,
                                          const ConstTensorView& out, std::string_view in_name,
                                          const ConstTensorView& in);
/// An operator that reads each element before it writes it may work in place: `out` is `in` itself or apart from it.
OPS_TRANSFORMER_API void check_in_place_or_apart(std::string_view operation, std::string_view out_name,
                                                 const ConstTensorView& out, std::string_view in_name,
                                                 const ConstTensorView& in);
/// Each element has its own place, so that threads don't write to the same one: a dimension's stride is at least the
/// reach of those with smaller strides.
OPS_TRANSFORMER_API void check_output(std::string_view operation, std::string_view name, const ConstTensorView& out);

}  // namespace ops_transformer
