// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "ops_transformer/base/context.h"
#include "ops_transformer/base/error.h"
#include "ops_transformer/base/tensor_view.h"

namespace ops_transformer {

struct LayerNormOptions {
  float eps = 1e-5f;                          // 0 … 1
  std::optional<ConstTensorView> bias{};      // [hidden], dtype of weight
  std::optional<ConstTensorView> residual{};  // added to x before the norm; shape and dtype of x
  std::optional<TensorView> residual_out{};   // receives x + residual; may be the residual or x itself, else apart
  std::optional<TensorView> scales{};         // [rows] f32: quantise, as in RmsNormOptions
};

/// Layer normalisation (Ba et al., 2016): out = (h - mean(h)) / sqrt(variance(h) + eps) * weight + bias, h = x +
/// residual; the variance is that of the row itself (divided by hidden). One pass over memory: both moments are summed
/// around a value near the mean as the row arrives, and rows that this would not serve are centred in cache. Computed
/// in f32 with one rounding at the end. Rows of any finite size are normalised, and a row of equal elements gives the
/// bias.
///
/// x       [rows, hidden]  f32 | bf16 | f16, last dimension contiguous
/// weight  [hidden]        f32, or the dtype of x
/// out     [rows, hidden]  f32, or the dtype of x; s8 with scales; may be x itself, overlaps nothing else
/// Throws InvalidArgument, which names the argument; past validation nothing fails.
OPS_TRANSFORMER_API void layer_norm(Context& context, const ConstTensorView& x, const ConstTensorView& weight,
                                    const TensorView& out, const LayerNormOptions& options = {});

}  // namespace ops_transformer
