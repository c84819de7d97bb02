// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops_transformer/gemm/weight_format.h"

namespace ops_transformer {

/// Tiles [num_inputs][16].
extern const WeightFormat kF32Weights;
/// Tiles [ceil(num_inputs / 2)][16][2]: pairs along the inputs, as the bf16 dot product wants them.
extern const WeightFormat kBf16Weights;
/// Tiles [num_inputs][16], kept as f16 and widened in registers.
extern const WeightFormat kF16Weights;

}  // namespace ops_transformer
