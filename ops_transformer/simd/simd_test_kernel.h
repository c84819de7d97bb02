// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops_transformer/base/isa.h"

namespace ops_transformer {

enum class SimdFunction : std::uint8_t { exp2, exp, tanh, through_bf16, through_f16 };

/// One function of the vector layer over n values.
using SimdMapFn = void(SimdFunction function, const float* x, float* y, std::size_t n) noexcept;
OPS_TRANSFORMER_KERNEL(simd_map, SimdMapFn, generic, avx2, avx512, avx512_bf16)

/// Sum and largest lane of one vector, whose length is returned.
using SimdReduceFn = int(const float* x, float& sum, float& largest) noexcept;
OPS_TRANSFORMER_KERNEL(simd_reduce, SimdReduceFn, generic, avx2, avx512, avx512_bf16)

/// Even elements, odd elements of 2 * lanes values, then both put together again; returns the number of lanes.
using SimdInterleaveFn = int(const float* x, float* even, float* odd, float* again) noexcept;
OPS_TRANSFORMER_KERNEL(simd_interleave, SimdInterleaveFn, generic, avx2, avx512, avx512_bf16)

}  // namespace ops_transformer
