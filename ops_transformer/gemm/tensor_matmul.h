// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "ops_transformer/base/context.h"
#include "ops_transformer/base/error.h"
#include "ops_transformer/base/tensor_view.h"
#include "ops_transformer/gemm/linear.h"

namespace ops_transformer {

struct MatmulOptions {
  bool transpose_b = false;               // b is [..., N, K]
  std::optional<ConstTensorView> bias{};  // [N] f32
  Activation activation = Activation::none;
  std::optional<ConstTensorView> residual{};  // shape and dtype of out, added last; may be out itself
  Arithmetic arithmetic = Arithmetic::fast;   // b bf16: see Arithmetic
  std::int32_t a_zero = 0, b_zero = 0;        // of integers: the codes of 0
};

/// out = activation(a b + bias) + residual, with one rounding to the dtype of out; leading dimensions are broadcast.
/// Both operands may have any strides. b is packed on every call (once for all of a where it has no leading
/// dimensions): weights that are used again belong into PackedWeights and `linear`. Bits as for `linear`.
///
/// a    [..., M, K]  f32 | bf16 | f16; or s8 | u8
/// b    [..., K, N]  f32 | bf16 | f16 beside a of any of them; s8 | u8 beside a of either
/// out  [..., M, N]  f32 | bf16 | f16, last dimension contiguous, overlaps neither a nor b. Of integers: i32, the sums
/// of
///                   (a - a_zero) (b - b_zero) modulo 2^32, without bias, activation and residual
/// Throws InvalidArgument, which names the argument; past validation nothing fails.
OPS_TRANSFORMER_API void matmul(Context& context, const ConstTensorView& a, const ConstTensorView& b,
                                const TensorView& out, const MatmulOptions& options = {});

}  // namespace ops_transformer
