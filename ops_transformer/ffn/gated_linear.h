// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "ops_transformer/base/context.h"
#include "ops_transformer/base/error.h"
#include "ops_transformer/base/tensor_view.h"
#include "ops_transformer/gemm/linear.h"
#include "ops_transformer/norm/norm_linear.h"

namespace ops_transformer {

struct GatedLinearOptions {
  Activation activation = Activation::silu;  // silu: SwiGLU; gelu_tanh, gelu_erf: GeGLU; relu: ReGLU; none: bilinear
  Arithmetic arithmetic = Arithmetic::fast;
  std::optional<RowNorm> norm{};          // x is normalised while it is read
  std::optional<ConstTensorView> bias{};  // [2 n] f32: of the n gates, then of up; added before the activation
};

/// Gated linear unit (Shazeer, 2020): out = activation(x gate^T) * (x up^T), multiplied while both sums are in L1, so
/// that neither is stored; one rounding to the dtype of out. Bits as for linear.
///
/// x        [rows, num_inputs]  f32 | bf16 | f16, last dimension contiguous
/// gate_up  of PackedWeights::pack_gate_up, n gated outputs
/// out      [rows, n]           f32 | bf16 | f16, last dimension contiguous; overlaps neither x nor the weights
/// Throws InvalidArgument, which names the argument; past validation nothing fails.
OPS_TRANSFORMER_API void gated_linear(Context& context, const ConstTensorView& x, const PackedWeights& gate_up,
                                      const TensorView& out, const GatedLinearOptions& options = {});

}  // namespace ops_transformer
