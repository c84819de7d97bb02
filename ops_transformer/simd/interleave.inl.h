// SPDX-License-Identifier: Apache-2.0
// Pairs in neighbouring lanes to pairs in two vectors, and back.

#if defined(OPS_TRANSFORMER_SIMD_512)
  #define OPS_TRANSFORMER_SHUFFLE_EVEN 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30
  #define OPS_TRANSFORMER_SHUFFLE_ODD 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31
  #define OPS_TRANSFORMER_SHUFFLE_LOW 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
  #define OPS_TRANSFORMER_SHUFFLE_HIGH 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#elif defined(OPS_TRANSFORMER_SIMD_256)
  #define OPS_TRANSFORMER_SHUFFLE_EVEN 0, 2, 4, 6, 8, 10, 12, 14
  #define OPS_TRANSFORMER_SHUFFLE_ODD 1, 3, 5, 7, 9, 11, 13, 15
  #define OPS_TRANSFORMER_SHUFFLE_LOW 0, 8, 1, 9, 2, 10, 3, 11
  #define OPS_TRANSFORMER_SHUFFLE_HIGH 4, 12, 5, 13, 6, 14, 7, 15
#else
  #define OPS_TRANSFORMER_SHUFFLE_EVEN 0, 2, 4, 6
  #define OPS_TRANSFORMER_SHUFFLE_ODD 1, 3, 5, 7
  #define OPS_TRANSFORMER_SHUFFLE_LOW 0, 4, 1, 5
  #define OPS_TRANSFORMER_SHUFFLE_HIGH 2, 6, 3, 7
#endif

// The even and the odd elements of 2 * kLanes in a row.
OPS_TRANSFORMER_INLINE F32 even_lanes(F32 a, F32 b) noexcept {
  return __builtin_shufflevector(a, b, OPS_TRANSFORMER_SHUFFLE_EVEN);
}
OPS_TRANSFORMER_INLINE F32 odd_lanes(F32 a, F32 b) noexcept {
  return __builtin_shufflevector(a, b, OPS_TRANSFORMER_SHUFFLE_ODD);
}
// The inverse: the first and the last kLanes elements.
OPS_TRANSFORMER_INLINE F32 interleave_low(F32 even, F32 odd) noexcept {
  return __builtin_shufflevector(even, odd, OPS_TRANSFORMER_SHUFFLE_LOW);
}
OPS_TRANSFORMER_INLINE F32 interleave_high(F32 even, F32 odd) noexcept {
  return __builtin_shufflevector(even, odd, OPS_TRANSFORMER_SHUFFLE_HIGH);
}

#undef OPS_TRANSFORMER_SHUFFLE_EVEN
#undef OPS_TRANSFORMER_SHUFFLE_ODD
#undef OPS_TRANSFORMER_SHUFFLE_LOW
#undef OPS_TRANSFORMER_SHUFFLE_HIGH
