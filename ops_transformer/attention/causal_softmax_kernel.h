// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "ops_transformer/base/isa.h"

namespace ops_transformer {

/// One row of `num_keys` scores, of which the first `num_visible` (>= 0) take part.
using SoftmaxRowFn = void(float* scores, std::int64_t num_keys, std::int64_t num_visible, float scale) noexcept;
OPS_TRANSFORMER_KERNEL(softmax_row, SoftmaxRowFn, generic, avx2, avx512)

}  // namespace ops_transformer
