// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "ops_transformer/base/context.h"
#include "ops_transformer/base/error.h"
#include "ops_transformer/base/tensor_view.h"
#include "ops_transformer/gemm/linear.h"

namespace ops_transformer {

struct FfnOptions {
  Activation activation = Activation::silu;
  std::optional<ConstTensorView> bias1{};  // [experts, n1] f32; n1 of gated weights: the gates' n, then up's
  std::optional<ConstTensorView> bias2{};  // [experts, hidden] f32
  // Rows of each expert, one after another; empty: there is one expert, of all rows.
  std::span<const std::int64_t> expert_tokens{};
  bool expert_tokens_are_ends = false;  // where each expert's rows end, else their counts
  Arithmetic arithmetic = Arithmetic::fast;
};

/// Feed-forward network: out = activation(x w1^T + bias1) w2^T + bias2, each expert over its own rows; between the two
/// matmuls rows are rounded to the dtype of x. Weights of pack_gate_up make it gated: activation(x gate^T + its bias) *
/// (x up^T + its bias). An expert without rows is skipped; rows past the last expert's are not written.
///
/// x       [tokens, hidden]  f32 | bf16 | f16, last dimension contiguous
/// w1      one for each expert, n1 x hidden (n x hidden twice where gated), all of one shape
/// w2      one for each expert, hidden x n1 (hidden x n)
/// out     [tokens, hidden]  f32 | bf16 | f16, last dimension contiguous; overlaps no input
/// Throws InvalidArgument, which names the argument; then nothing has been written.
OPS_TRANSFORMER_API void ffn(Context& context, const ConstTensorView& x, std::span<const PackedWeights* const> w1,
                             std::span<const PackedWeights* const> w2, const TensorView& out,
                             const FfnOptions& options = {});

}  // namespace ops_transformer
