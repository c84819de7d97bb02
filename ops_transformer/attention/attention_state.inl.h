// SPDX-License-Identifier: Apache-2.0
// The state of a row over part of the keys, and how two become one (Milakov and Gimelshein, 2018): maximum m, sum l of
// weights 2^(score - m), o = sum of weight * value. Included inside a level's region, after simd/convert.inl.h.

inline constexpr float kMinusInfinity = -__builtin_inff();

// What a state relative to `from` is multiplied by to become relative to `to` >= from. Exactly 1 where nothing changes,
// so that a row's bits don't depend on tiles that are hidden from it; 0 where there was no state.
OPS_TRANSFORMER_INLINE F32 rescale_factor(F32 from, F32 to) noexcept {
  return to > from ? exp2(from - to) : splat(1.0f);
}

// A maximum to subtract: rows that have seen nothing yet have none, and -inf - -inf would be NaN.
OPS_TRANSFORMER_INLINE F32 finite_maximum(F32 m) noexcept { return m == splat(kMinusInfinity) ? F32{} : m; }

// 1 / l, and 0 for a row that sees no key.
OPS_TRANSFORMER_INLINE F32 inverse_sum(F32 l) noexcept { return l == F32{} ? F32{} : splat(1.0f) / l; }

OPS_TRANSFORMER_INLINE float log_sum(float m_ln, float l) noexcept {
  return l == 0.0f ? kMinusInfinity : m_ln + __builtin_logf(l);
}
inline constexpr float kLn2 = 0.693147181f, kLog2E = 1.44269504f;

[[maybe_unused]] void store_softmax(const SoftmaxPlaces& places, float m_ln, float l) noexcept {
  if (places.lse) *places.lse = log_sum(m_ln, l);
  for (int i = 0; i < 8; ++i) {
    if (places.max) places.max[i] = m_ln;
    if (places.sum) places.sum[i] = l;
  }
}

// A sink joins a row's sums: a score without a value. Gives what the values' sum shrinks by.
OPS_TRANSFORMER_INLINE F32 add_sink(F32 sink, F32& m, F32& l) noexcept {
  const F32 now = max(m, sink), factor = rescale_factor(m, now);
  l = l * factor + exp2(sink - finite_maximum(now));
  m = now;
  return factor;
}
