// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "ops_transformer/base/export.h"

namespace ops_transformer {

/// ALiBi's slope of each head (Press et al., 2022): 2^(-8 h / n) for h = 1...n where n is a power of two; else those of
/// the next lower power p, then every other one of 2p's, from its first on.
/// slopes [num_heads]
OPS_TRANSFORMER_API void alibi_slopes(std::span<float> slopes) noexcept;

}  // namespace ops_transformer
