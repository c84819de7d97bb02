// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "ops_transformer/base/context.h"
#include "ops_transformer/base/error.h"
#include "ops_transformer/base/tensor_view.h"
#include "ops_transformer/gemm/linear.h"

namespace ops_transformer {

enum class NormKind : std::uint8_t { rms, layer };

/// A norm of rows inside another operator: rms_norm or layer_norm of x + residual.
struct RowNorm {
  NormKind kind = NormKind::rms;
  ConstTensorView weight;                     // [hidden] f32, or the dtype of x
  float eps = 1e-5f;                          // 0 … 1
  float weight_offset = 0.0f;                 // rms alone: 1 for Gemma
  std::optional<ConstTensorView> bias{};      // layer alone: [hidden], dtype of weight
  std::optional<ConstTensorView> residual{};  // added to x before the norm; shape and dtype of x
  std::optional<TensorView> residual_out{};   // receives x + residual; may be the residual or x itself, else apart
};

/// linear of normalised rows in one pass over x: each row is normalised in f32 and goes straight into the form in which
/// the matmul reads it, rounded once where the weights are below f32; threads without rows fetch the first weights
/// meanwhile. Bits as for linear.
///
/// x        [rows, num_inputs]   f32 | bf16 | f16, last dimension contiguous
/// weights  num_outputs x num_inputs
/// out      [rows, num_outputs]  f32 | bf16 | f16, last dimension contiguous; overlaps no input but options.residual
/// Throws InvalidArgument, which names the argument; past validation nothing fails.
OPS_TRANSFORMER_API void norm_linear(Context& context, const ConstTensorView& x, const RowNorm& norm,
                                     const PackedWeights& weights, const TensorView& out,
                                     const LinearOptions& options = {});

}  // namespace ops_transformer
