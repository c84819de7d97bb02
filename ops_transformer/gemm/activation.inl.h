// SPDX-License-Identifier: Apache-2.0
// Activations in registers. Included inside a level's region, after simd/begin.h. Each is written as x times or over
// something that is accurate in relative terms, so that the negative tails don't cancel.

// 1 + exp(-x) overflows to infinity for large negative x, and the quotient is then the right zero.
OPS_TRANSFORMER_INLINE F32 silu(F32 x) noexcept { return x / (splat(1.0f) + exp(-x)); }

// 0.5 (1 + tanh(u)) = 1 / (1 + exp(-2 u)), u = sqrt(2 / pi) (x + 0.044715 x^3)
OPS_TRANSFORMER_INLINE F32 gelu_tanh(F32 x) noexcept {
  const F32 u2 = x * fma(x * x, splat(1.5957691216f * 0.044715f), splat(1.5957691216f));
  return x / (splat(1.0f) + exp(-u2));
}

// x Phi(x) by erfc(z) = t exp(-z^2 + P(t)), t = 1 / (1 + z / 2): relative error 1.2e-7 before rounding (Press et al.,
// Numerical Recipes, 6.2).
OPS_TRANSFORMER_INLINE F32 gelu_erf(F32 x) noexcept {
  const F32 z = abs(x) * splat(0.70710678f);
  const F32 t = splat(1.0f) / fma(z, splat(0.5f), splat(1.0f));
  F32 p = splat(0.17087277f);
  p = fma(p, t, splat(-0.82215223f));
  p = fma(p, t, splat(1.48851587f));
  p = fma(p, t, splat(-1.13520398f));
  p = fma(p, t, splat(0.27886807f));
  p = fma(p, t, splat(-0.18628806f));
  p = fma(p, t, splat(0.09678418f));
  p = fma(p, t, splat(0.37409196f));
  p = fma(p, t, splat(1.00002368f));
  p = fma(p, t, splat(-1.26551223f));
  const F32 half_erfc = splat(0.5f) * t * exp(fma(-z, z, p));
  const F32 result = x * (x > F32{} ? splat(1.0f) - half_erfc : half_erfc);
  return x == x ? result : x;
}

OPS_TRANSFORMER_INLINE F32 activate(F32 x, Activation activation) noexcept {
  switch (activation) {
    case Activation::none:
      return x;
    case Activation::relu:
      return max(F32{}, x);  // NaN stays
    case Activation::silu:
      return silu(x);
    case Activation::gelu_tanh:
      return gelu_tanh(x);
    case Activation::gelu_erf:
      return gelu_erf(x);
    case Activation::gelu_fast:
      return x / (splat(1.0f) + exp(x * splat(-1.702f)));
  }
  return x;
}
