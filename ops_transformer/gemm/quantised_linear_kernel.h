// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops_transformer/gemm/linear_kernel.h"

namespace ops_transformer {

/// Rows of QuantisedBlocks by tiles of quantised weights. Blocks of 32 inputs are integer sums, the same at every
/// level; they add up in f32 in the order of the inputs: sum = fma(weight scale * activation scale, integer sum, sum),
/// and for q4_1 then sum = fma(weight minimum, activation scaled_sum, sum).
OPS_TRANSFORMER_KERNEL(multiply_q4_0, MultiplyFn, generic, avx2, avx2_vnni, avx512, avx512_vnni)
OPS_TRANSFORMER_KERNEL(multiply_q4_1, MultiplyFn, generic, avx2, avx2_vnni, avx512, avx512_vnni)
OPS_TRANSFORMER_KERNEL(multiply_q8_0, MultiplyFn, generic, avx2, avx2_vnni, avx512, avx512_vnni)

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
