// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops_transformer/gemm/linear_kernel.h"

namespace ops_transformer {

/// Rows of QuantisedBlocks by tiles of quantised weights (WeightForm). Sums over 32 inputs are integers, the same at
/// every level, sub-scales included; they add up in f32 in the order of the inputs. Types without sub-scales, for each
/// 32 inputs:
///   sum = fma(weight scale * activation scale, integer sum, sum)
///   sum = fma(weight minimum, activation scaled_sum, sum)         where there are minima
/// Types with sub-scales:
///   of_block = fma(activation scale, integer sum, of_block)       for each 32 inputs of a block of 256, from 0
///   sum = fma(weight scale, of_block, sum)
///   sum = fma(weight minimum, activation scaled_sum, sum)         for each sub-block, where there are minima
OPS_TRANSFORMER_KERNEL(multiply_q4_0, MultiplyFn, generic, avx2, avx2_vnni, avx512, avx512_vnni)
OPS_TRANSFORMER_KERNEL(multiply_q4_1, MultiplyFn, generic, avx2, avx2_vnni, avx512, avx512_vnni)
OPS_TRANSFORMER_KERNEL(multiply_q5_0, MultiplyFn, generic, avx2, avx2_vnni, avx512, avx512_vnni)
OPS_TRANSFORMER_KERNEL(multiply_q5_1, MultiplyFn, generic, avx2, avx2_vnni, avx512, avx512_vnni)
OPS_TRANSFORMER_KERNEL(multiply_q8_0, MultiplyFn, generic, avx2, avx2_vnni, avx512, avx512_vnni)
OPS_TRANSFORMER_KERNEL(multiply_q2_k, MultiplyFn, generic, avx2, avx2_vnni, avx512, avx512_vnni)
OPS_TRANSFORMER_KERNEL(multiply_q3_k, MultiplyFn, generic, avx2, avx2_vnni, avx512, avx512_vnni)
OPS_TRANSFORMER_KERNEL(multiply_q4_k, MultiplyFn, generic, avx2, avx2_vnni, avx512, avx512_vnni)
OPS_TRANSFORMER_KERNEL(multiply_q5_k, MultiplyFn, generic, avx2, avx2_vnni, avx512, avx512_vnni)
OPS_TRANSFORMER_KERNEL(multiply_q6_k, MultiplyFn, generic, avx2, avx2_vnni, avx512, avx512_vnni)

/// Rows of f32 by the values that the weights stand for: f32 products, one chain in the order of the inputs.
OPS_TRANSFORMER_KERNEL(multiply_exact_q4_0, MultiplyFn, generic, avx2, avx512)
OPS_TRANSFORMER_KERNEL(multiply_exact_q4_1, MultiplyFn, generic, avx2, avx512)
OPS_TRANSFORMER_KERNEL(multiply_exact_q5_0, MultiplyFn, generic, avx2, avx512)
OPS_TRANSFORMER_KERNEL(multiply_exact_q5_1, MultiplyFn, generic, avx2, avx512)
OPS_TRANSFORMER_KERNEL(multiply_exact_q8_0, MultiplyFn, generic, avx2, avx512)
OPS_TRANSFORMER_KERNEL(multiply_exact_q2_k, MultiplyFn, generic, avx2, avx512)
OPS_TRANSFORMER_KERNEL(multiply_exact_q3_k, MultiplyFn, generic, avx2, avx512)
OPS_TRANSFORMER_KERNEL(multiply_exact_q4_k, MultiplyFn, generic, avx2, avx512)
OPS_TRANSFORMER_KERNEL(multiply_exact_q5_k, MultiplyFn, generic, avx2, avx512)
OPS_TRANSFORMER_KERNEL(multiply_exact_q6_k, MultiplyFn, generic, avx2, avx512)

}  // namespace ops_transformer
