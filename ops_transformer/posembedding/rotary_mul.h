// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "ops_transformer/base/context.h"
#include "ops_transformer/base/error.h"
#include "ops_transformer/base/tensor_view.h"

namespace ops_transformer {

/// What rot(x) is, for a row x of d elements.
enum class RotaryMode : std::uint8_t {
  half,             // (-x2, x1), x = (x1, x2)
  interleave,       // pairs (-x[2i + 1], x[2i])
  quarter,          // (-x2, x1, -x4, x3), x = (x1, x2, x3, x4)
  interleave_half,  // y = (evens of x, odds of x) instead of x: out = y cos + (-y2, y1) sin
};

/// Rotation by the caller's own factors, one for each element: out = x cos + rot(x) sin. Dimensions past those of cos
/// are copied. Computed in f32 with one rounding at the end. rotary_embedding is the faster one where angles come from
/// positions.
///
/// x         [a, b, c, head_dim]  f32 | bf16 | f16, last dimension contiguous (of every tensor), other strides free
/// cos, sin  [a or 1, b or 1, c or 1, rotary_dim]  dtype of x, or f32; rotary_dim <= head_dim, a multiple of 2, of 4
/// for
///           quarter
/// rotated   [a, b, c, rotary_dim]  dtype of x: rot(x), where the caller has it; then the mode is not read
/// out       [a, b, c, head_dim]  dtype of x; x itself or no overlap
/// Throws InvalidArgument, which names the argument; past validation nothing fails.
OPS_TRANSFORMER_API void rotary_mul(Context& context, const ConstTensorView& x, const ConstTensorView& cos,
                                    const ConstTensorView& sin, RotaryMode mode, const TensorView& out,
                                    const std::optional<ConstTensorView>& rotated = {});

}  // namespace ops_transformer
