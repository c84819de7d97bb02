// SPDX-License-Identifier: Apache-2.0
// Pairs of bf16 in 32-bit lanes, low half first, for dot products. Included inside the region of avx512_bf16.

// `count` <= 32 values from element `offset` on, f32 ones rounded; zeros after them.
OPS_TRANSFORMER_INLINE I32 load_bf16_pairs(const void* p, DType dtype, std::int64_t offset, int count) noexcept {
  if (dtype == DType::bf16) {
    const __mmask32 mask = count < 32 ? (1u << count) - 1u : ~0u;
    return (I32)_mm512_maskz_loadu_epi16(mask, static_cast<const std::uint16_t*>(p) + offset);
  }
  const F32 low = load_any(p, dtype, offset, count < 16 ? count : 16);
  const F32 high = count > 16 ? load_any(p, dtype, offset + 16, count - 16) : F32{};
  return (I32)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low);
}

// Lane i: a[i], b[i] for values 0...15 (low) or 16...31 (high) of two rows.
OPS_TRANSFORMER_INLINE __m512i interleave_low(__m512i a, __m512i b) noexcept {
  alignas(64) static constexpr std::uint16_t kIndex[32] = {0,  32, 1,  33, 2,  34, 3,  35, 4,  36, 5,
                                                           37, 6,  38, 7,  39, 8,  40, 9,  41, 10, 42,
                                                           11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
  return _mm512_permutex2var_epi16(a, _mm512_load_si512(kIndex), b);
}
OPS_TRANSFORMER_INLINE __m512i interleave_high(__m512i a, __m512i b) noexcept {
  alignas(64) static constexpr std::uint16_t kIndex[32] = {16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21,
                                                           53, 22, 54, 23, 55, 24, 56, 25, 57, 26, 58,
                                                           27, 59, 28, 60, 29, 61, 30, 62, 31, 63};
  return _mm512_permutex2var_epi16(a, _mm512_load_si512(kIndex), b);
}

// Lane i: low[i] and high[i], rounded.
OPS_TRANSFORMER_INLINE I32 round_to_pairs(F32 low, F32 high) noexcept {
  alignas(64) static constexpr std::uint16_t kIndex[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                           21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                           11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const __m512i both = (__m512i)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low);
  return (I32)_mm512_permutexvar_epi16(_mm512_load_si512(kIndex), both);
}
OPS_TRANSFORMER_INLINE F32 low_of(I32 pairs) noexcept { return (F32)(pairs << 16); }
OPS_TRANSFORMER_INLINE F32 high_of(I32 pairs) noexcept { return (F32)(pairs & std::int32_t(0xffff0000)); }
