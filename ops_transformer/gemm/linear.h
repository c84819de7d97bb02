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
/// are rounded too: to bf16 for bf16 weights, to int8 in blocks of 32 for the block-quantised types, to int8 in the
/// groups of the weights (without groups: a row has one scale) for integer weights. `exact`: f32 products with the
/// activations as they are and the dequantised weights. f32 and f16 weights are exact either way. Sums are f32 in both.
/// bf16 products take subnormals as zero where the CPU has a bf16 dot product.
enum class Arithmetic : std::uint8_t { fast, exact };

struct LinearOptions {
  std::optional<ConstTensorView> bias{};  // [num_outputs] f32
  Activation activation = Activation::none;
  std::optional<ConstTensorView> residual{};  // [rows, num_outputs], dtype of out, added last; may be out itself
  Arithmetic arithmetic = Arithmetic::fast;
  /// Rows of x to take, in this order and any number of times: [rows] i32, contiguous.
  std::optional<ConstTensorView> x_rows{};
  /// What a code of x stands for, x_scale * (code - x_zero): [1] or [rows of x] f32. For x s8 and u8 (unset: 1), and
  /// for float x by integer weights, which is then rounded by them (unset: each row by its own largest value).
  std::optional<ConstTensorView> x_scales{};
  std::int32_t x_zero = 0;  // of s8 and u8, among their codes; the weights are without groups then
  /// Multiply the rows before the residual is added: [rows] f32, contiguous.
  std::optional<ConstTensorView> row_scales{};
  /// out s8 or u8: the code nearest y / out_scale + out_zero, ties to even, then clamped.
  float out_scale = 1.0f;
  std::int32_t out_zero = 0;
  /// Scatter-add: row r is added to row out_rows[r] of out, in order, or dropped below 0: [rows] i32, contiguous. out
  /// has any number of rows then; each addition is rounded to its dtype. No residual.
  std::optional<ConstTensorView> out_rows{};
};

/// out = row_scale * activation(x weights^T + bias) + residual, with one rounding to the dtype of out.
/// A row's bits depend neither on the other rows or their number nor on the number of threads: each sum is one chain in
/// the order of the inputs.
///
/// x        [rows, num_inputs]   f32 | bf16 | f16, or s8 | u8 for float and integer weights; last dimension contiguous
/// weights  num_outputs x num_inputs
/// out      [rows, num_outputs]  f32 | bf16 | f16 | s8 | u8, last dimension contiguous; overlaps nothing but residual.
/// i32:
///          the sums themselves, of x s8 or u8 by integer weights without groups, less both zeros, modulo 2^32, and
///          nothing else is asked for (no bias, activation, scales)
/// Throws InvalidArgument, which names the argument; past validation nothing fails, but that a NaN has no code: out s8
/// and u8 are then written, and InvalidArgument says so.
OPS_TRANSFORMER_API void linear(Context& context, const ConstTensorView& x, const PackedWeights& weights,
                                const TensorView& out, const LinearOptions& options = {});

}  // namespace ops_transformer
