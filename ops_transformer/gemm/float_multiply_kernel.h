// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops_transformer/gemm/linear_kernel.h"

namespace ops_transformer {

/// Rows as f32.
OPS_TRANSFORMER_KERNEL(prepare_f32, PrepareFn, generic, avx2, avx512, avx512_bf16)
/// Rows rounded to bf16, zero-padded to an even number of inputs; below avx512_bf16 the rounded values as f32.
OPS_TRANSFORMER_KERNEL(prepare_bf16, PrepareFn, generic, avx2, avx512, avx512_bf16)

/// f32 rows by tiles [num_inputs][16] of f32.
OPS_TRANSFORMER_KERNEL(multiply_f32, MultiplyFn, generic, avx2, avx512, avx512_bf16)
/// f32 rows by tiles [num_inputs][16] of f16.
OPS_TRANSFORMER_KERNEL(multiply_f16, MultiplyFn, generic, avx2, avx512, avx512_bf16)
/// Rows of prepare_bf16 by tiles [num_inputs / 2][16][2] of bf16.
OPS_TRANSFORMER_KERNEL(multiply_bf16, MultiplyFn, generic, avx2, avx512, avx512_bf16)
/// f32 rows by the same tiles, products in f32.
OPS_TRANSFORMER_KERNEL(multiply_bf16_exact, MultiplyFn, generic, avx2, avx512, avx512_bf16)

}  // namespace ops_transformer
