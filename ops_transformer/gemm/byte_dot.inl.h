// SPDX-License-Identifier: Apache-2.0
// Dot products of four bytes in each 32-bit lane, unsigned codes of kBits bits by signed activations within +-127. All
// levels give the same integers. Included inside a level's region, after simd/begin.h.
//
//   I32 sum = dot_start<kBits>(start);                a block begins; `start` is its constant part
//   sum = dot_add<kBits>(sum, codes, activations);     at most 8 times
//   sum = dot_finish<kBits>(sum, start);               int32: start + products
//
// Codes of 8 bits are s8 + 128: their start must be -128 * sum of the activations.
//
//   sum = dot_any(sum, codes, activations)             any unsigned by any signed bytes, -128 among them

#if defined(OPS_TRANSFORMER_ISA_avx512_vnni)

OPS_TRANSFORMER_INLINE I32 dot_any(I32 sum, I32 weights, I32 activations) noexcept {
  return (I32)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)weights, (__m512i)activations);
}

template <int kBits>
OPS_TRANSFORMER_INLINE I32 dot_start(I32 start) noexcept {
  return start;
}
template <int kBits>
OPS_TRANSFORMER_INLINE I32 dot_add(I32 sum, I32 weights, I32 activations) noexcept {
  return (I32)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)weights, (__m512i)activations);
}
template <int kBits>
OPS_TRANSFORMER_INLINE I32 dot_finish(I32 sum, I32) noexcept {
  return sum;
}

#elif defined(OPS_TRANSFORMER_ISA_avx2_vnni)

OPS_TRANSFORMER_INLINE I32 dot_any(I32 sum, I32 weights, I32 activations) noexcept {
  return (I32)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)weights, (__m256i)activations);
}

template <int kBits>
OPS_TRANSFORMER_INLINE I32 dot_start(I32 start) noexcept {
  return start;
}
template <int kBits>
OPS_TRANSFORMER_INLINE I32 dot_add(I32 sum, I32 weights, I32 activations) noexcept {
  return (I32)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)weights, (__m256i)activations);
}
template <int kBits>
OPS_TRANSFORMER_INLINE I32 dot_finish(I32 sum, I32) noexcept {
  return sum;
}

#else

template <int kBits>
OPS_TRANSFORMER_INLINE I32 dot_start(I32 start) noexcept {
  return kBits > 4 && kBits < 8 ? start : I32{};
}

typedef std::int16_t I16 __attribute__((vector_size(kVectorBytes)));

// Pairs of 16-bit sums to 32 bits.
OPS_TRANSFORMER_INLINE I32 add_pairs(I16 pairs) noexcept {
  #if defined(OPS_TRANSFORMER_SIMD_512)
  return (I32)_mm512_madd_epi16((__m512i)pairs, _mm512_set1_epi16(1));
  #elif defined(OPS_TRANSFORMER_SIMD_256)
  return (I32)_mm256_madd_epi16((__m256i)pairs, _mm256_set1_epi16(1));
  #else
  return ((I32)pairs << 16 >> 16) + ((I32)pairs >> 16);
  #endif
}

// Bytes 0 and 2 of each lane, then 1 and 3, as 16 bits: a product fits those, a sum of two products may not.
OPS_TRANSFORMER_INLINE I32 dot_any(I32 sum, I32 weights, I32 activations) noexcept {
  const I16 a = (I16)activations, even = (I16)(weights & 0x00ff00ff), odd = (I16)((weights >> 8) & 0x00ff00ff);
  const I16 a_even = a << 8 >> 8, a_odd = a >> 8;
  #if defined(OPS_TRANSFORMER_SIMD_512)
  return sum + (I32)_mm512_madd_epi16((__m512i)even, (__m512i)a_even) +
         (I32)_mm512_madd_epi16((__m512i)odd, (__m512i)a_odd);
  #elif defined(OPS_TRANSFORMER_SIMD_256)
  return sum + (I32)_mm256_madd_epi16((__m256i)even, (__m256i)a_even) +
         (I32)_mm256_madd_epi16((__m256i)odd, (__m256i)a_odd);
  #else
  return sum + add_pairs(even * a_even) + add_pairs(odd * a_odd);
  #endif
}

// Two products in each 16-bit lane.
OPS_TRANSFORMER_INLINE I16 code_products(I32 weights, I32 activations) noexcept {
  #if defined(OPS_TRANSFORMER_SIMD_512)
  return (I16)_mm512_maddubs_epi16((__m512i)weights, (__m512i)activations);
  #elif defined(OPS_TRANSFORMER_SIMD_256)
  return (I16)_mm256_maddubs_epi16((__m256i)weights, (__m256i)activations);
  #else
  const I16 w = (I16)weights, a = (I16)activations;
  return (w & 0xff) * (a << 8 >> 8) + (w >> 8) * (a >> 8);
  #endif
}

// maddubs would saturate on bytes up to 255, so the sign moves to the activations: |w| * (sign(w) a) <= 128 * 127.
OPS_TRANSFORMER_INLINE I16 byte_products(I32 weights, I32 activations) noexcept {
  #if defined(OPS_TRANSFORMER_SIMD_512)
  const __m512i w = _mm512_xor_si512((__m512i)weights, _mm512_set1_epi8(-128)), a = (__m512i)activations;
  const __m512i moved = _mm512_mask_sub_epi8(a, _mm512_movepi8_mask(w), _mm512_setzero_si512(), a);
  return (I16)_mm512_maddubs_epi16(_mm512_abs_epi8(w), moved);
  #elif defined(OPS_TRANSFORMER_SIMD_256)
  const __m256i w = _mm256_xor_si256((__m256i)weights, _mm256_set1_epi8(-128));
  return (I16)_mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8((__m256i)activations, w));
  #else
  const I16 w = (I16)(weights ^ (std::int32_t)0x80808080), a = (I16)activations;
  return (w << 8 >> 8) * (a << 8 >> 8) + (w >> 8) * (a >> 8);
  #endif
}

// Up to four bits, 8 sums of two products are at most 8 * 2 * 15 * 127 < 2^15.
template <int kBits>
OPS_TRANSFORMER_INLINE I32 dot_add(I32 sum, I32 weights, I32 activations) noexcept {
  if constexpr (kBits == 8) return sum + add_pairs(byte_products(weights, activations));
  if constexpr (kBits > 4) return sum + add_pairs(code_products(weights, activations));
  return (I32)((I16)sum + code_products(weights, activations));
}
template <int kBits>
OPS_TRANSFORMER_INLINE I32 dot_finish(I32 sum, I32 start) noexcept {
  if constexpr (kBits > 4) return sum;
  return add_pairs((I16)sum) + start;
}

#endif
