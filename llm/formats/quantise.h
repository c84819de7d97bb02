// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string_view>

#include "ops_transformer/base/dtype.h"
#include "ops_transformer/base/export.h"

namespace ops_transformer::llm {

/// f32, f16, bf16, q8_0, q4_0, q4_1: what quantise_row makes.
OPS_TRANSFORMER_API bool can_quantise(DType dtype) noexcept;

/// Rounds values to the nearest of `dtype`, block by block, with the bits of PyPI's `gguf`.
///
/// values  finite; a multiple of the type's block
/// out     the bytes of values.size() elements
/// Returns the first value that the type or its f16 scale can't hold (and then `out` is unspecified).
OPS_TRANSFORMER_API std::optional<float> quantise_row(DType dtype, std::span<const float> values,
                                                      std::span<std::byte> out);

}  // namespace ops_transformer::llm
