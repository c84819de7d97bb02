// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "ops_transformer/base/context.h"
#include "ops_transformer/base/error.h"
#include "ops_transformer/base/tensor_view.h"
#include "ops_transformer/gemm/activation.h"
#include "ops_transformer/gemm/packed_weights.h"

namespace ops_transformer {

/// How products with weights below f32 are formed. `fast`: in the weights' own dot product, for which the activations
/// are rounded too: to bf16 for bf16 weights, to int8 in blocks of 32 for the block-quantised types. `exact`: f32
/// products with the activations as they are and the dequantised weights. f32 and f16 weights are exact either way.
/// Sums are f32 in both. bf16 products take subnormals as zero where the CPU has a bf16 dot product.
enum class Arithmetic : std::uint8_t { fast, exact };

struct LinearOptions {
  std::optional<ConstTensorView> bias{};  // [num_outputs] f32
  Activation activation = Activation::none;
  std::optional<ConstTensorView> residual{};  // [rows, num_outputs], dtype of out, added last; may be out itself
  Arithmetic arithmetic = Arithmetic::fast;
};

/// out = activation(x weights^T + bias) + residual, with one rounding to the dtype of out.
/// A row's bits depend neither on the other rows or their number nor on the number of threads: each sum is one chain in
/// the order of the inputs.
///
/// x        [rows, num_inputs]   f32 | bf16 | f16, last dimension contiguous
/// weights  num_outputs x num_inputs
/// out      [rows, num_outputs]  f32 | bf16 | f16, last dimension contiguous; overlaps neither x nor bias
/// Throws InvalidArgument, which names the argument; past validation nothing fails.
OPS_TRANSFORMER_API void linear(Context& context, const ConstTensorView& x, const PackedWeights& weights,
                                const TensorView& out, const LinearOptions& options = {});

}  // namespace ops_transformer
