// SPDX-License-Identifier: Apache-2.0
// Philox4x32-10 (Salmon et al., 2011), a counter in each lane. Included inside a level's region.

typedef std::uint64_t U64 __attribute__((vector_size(kVectorBytes)));

OPS_TRANSFORMER_INLINE U32 splat_bits(std::uint32_t x) noexcept { return x - U32{}; }

// The products of the even lanes' low words.
OPS_TRANSFORMER_INLINE U64 multiply_even(U64 a, U32 factor) noexcept {
#if defined(OPS_TRANSFORMER_SIMD_512)
  return (U64)_mm512_mul_epu32((__m512i)a, (__m512i)factor);
#elif defined(OPS_TRANSFORMER_SIMD_256)
  return (U64)_mm256_mul_epu32((__m256i)a, (__m256i)factor);
#elif defined(__x86_64__)
  return (U64)_mm_mul_epu32((__m128i)a, (__m128i)factor);
#else
  return (a & 0xffffffffu) * ((U64)factor & 0xffffffffu);
#endif
}
OPS_TRANSFORMER_INLINE void multiply_words(U32 a, std::uint32_t factor, U32& high, U32& low) noexcept {
  const U64 even = multiply_even((U64)a, splat_bits(factor)), odd = multiply_even((U64)a >> 32, splat_bits(factor));
  low = (U32)((even & 0xffffffffu) | (odd << 32));
  high = (U32)((even >> 32) | (odd & 0xffffffff00000000u));
}

OPS_TRANSFORMER_INLINE void philox(std::uint32_t key_low, std::uint32_t key_high, U32 (&counter)[4]) noexcept {
  for (int round = 0; round < 10; ++round, key_low += 0x9e3779b9u, key_high += 0xbb67ae85u) {
    U32 high0, low0, high1, low1;
    multiply_words(counter[0], 0xd2511f53u, high0, low0);
    multiply_words(counter[2], 0xcd9e8d57u, high1, low1);
    counter[0] = high1 ^ counter[1] ^ splat_bits(key_low);
    counter[1] = low1;
    counter[2] = high0 ^ counter[3] ^ splat_bits(key_high);
    counter[3] = low0;
  }
}
