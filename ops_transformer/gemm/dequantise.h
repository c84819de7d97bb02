// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "ops_transformer/base/dtype.h"
#include "ops_transformer/base/export.h"

namespace ops_transformer {

/// The floats that contiguous rows of a GGUF tensor stand for: any of its block-quantised types, bit for bit what
/// PyPI's `gguf` gives; or f32, bf16, f16 as they are. Each value is rounded at most once, to f32.
///
/// rows  num_elements of `dtype`, no alignment needed
/// out   [num_elements] f32
/// Throws InvalidArgument: another dtype; num_elements negative or not a multiple of the block.
OPS_TRANSFORMER_API void dequantise_rows(DType dtype, const void* rows, std::int64_t num_elements, float* out);

}  // namespace ops_transformer
