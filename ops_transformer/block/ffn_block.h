// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "ops_transformer/base/context.h"
#include "ops_transformer/base/error.h"
#include "ops_transformer/base/tensor_view.h"
#include "ops_transformer/ffn/gated_linear.h"

namespace ops_transformer {

struct FfnBlockOptions {
  std::optional<RowNorm> norm{};     // of x, before gate and up
  bool residual_connection = false;  // out = x + the rest
  Activation activation = Activation::silu;
  Arithmetic arithmetic = Arithmetic::fast;
};

/// Feed-forward sublayer of a transformer: out = x + (activation(norm(x) gate^T) * (norm(x) up^T)) down^T. Rows are
/// normalised as the first matmul reads them, gate and up are multiplied in its epilogue, the sum with x is in the last
/// one: between the two matmuls the gated rows alone exist, rounded to the dtype of x.
///
/// x        [tokens, hidden]  f32 | bf16 | f16, last dimension contiguous
/// gate_up  of PackedWeights::pack_gate_up, intermediate_size x hidden
/// down     hidden x intermediate_size
/// out      [tokens, hidden]  dtype of x; overlaps no input
/// Throws InvalidArgument, which names the argument; then nothing has been written.
OPS_TRANSFORMER_API void ffn_block(Context& context, const ConstTensorView& x, const PackedWeights& gate_up,
                                   const PackedWeights& down, const TensorView& out,
                                   const FfnBlockOptions& options = {});

}  // namespace ops_transformer
