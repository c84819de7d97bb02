// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "ops_transformer/base/context.h"
#include "ops_transformer/base/error.h"
#include "ops_transformer/base/tensor_view.h"

namespace ops_transformer {

struct RmsNormOptions {
  float eps = 1e-5f;                          // 0 … 1
  float weight_offset = 0.0f;                 // y = x / rms * (weight_offset + weight); 1 for Gemma
  std::optional<ConstTensorView> residual{};  // added to x before the norm; shape and dtype of x
  std::optional<TensorView> residual_out{};   // receives x + residual; may be the residual or x itself, else apart
  std::optional<ConstTensorView> added{};     // added to the result before its rounding; shape and dtype of out
  std::optional<TensorView> scales{};  // [rows] f32: quantise, out is s8 and y = scale * code, scale = max|y| / 127
};

/// Root mean square normalisation (Zhang and Sennrich, 2019): out = h / sqrt(mean(h^2) + eps) * weight, h = x +
/// residual; plus `added`. Computed in f32 with one rounding at the end. Squares neither overflow nor underflow: h of
/// any size, unless its sum is past the largest float, gives h / rms within the bound, and a row of zeros gives zeros,
/// with eps 0 too. Codes are rounded half to even and within +-127; a row of zeros has scale 0, one with a NaN or an
/// infinity scale NaN and codes 0.
///
/// x       [rows, hidden]  f32 | bf16 | f16, last dimension contiguous
/// weight  [hidden]        f32, or the dtype of x
/// out     [rows, hidden]  f32, or the dtype of x; s8 with scales; may be x or `added` itself, overlaps nothing
///                         else
/// Throws InvalidArgument, which names the argument; past validation nothing fails.
OPS_TRANSFORMER_API void rms_norm(Context& context, const ConstTensorView& x, const ConstTensorView& weight,
                                  const TensorView& out, const RmsNormOptions& options = {});

}  // namespace ops_transformer
