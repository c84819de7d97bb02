// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace ops_transformer {

/// Elementwise functions that a matmul applies to its result, in f32. gelu_tanh is the tanh approximation, gelu_erf the
/// definition by the error function (Hendrycks and Gimpel, 2016), gelu_fast x * sigmoid(1.702 x) of the same paper.
enum class Activation : std::uint8_t { none, relu, silu, gelu_tanh, gelu_erf, gelu_fast };
inline constexpr Activation kLastActivation = Activation::gelu_fast;

}  // namespace ops_transformer
