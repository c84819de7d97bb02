// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops_transformer/gemm/linear_kernel.h"

namespace ops_transformer {

/// Tiles 2 t and 2 t + 1 of the sums are gate and up of outputs [16 t, 16 t + 16): out = activation(gate) * up.
/// bias: num_outputs of the gates, then as many of up. The residual is not read.
OPS_TRANSFORMER_KERNEL(gated_epilogue, EpilogueFn, generic, avx2, avx512, avx512_bf16)

}  // namespace ops_transformer
