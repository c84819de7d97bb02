// SPDX-License-Identifier: Apache-2.0
// The vector layer: float and int32 vectors of the level's width on GCC/Clang vector types. Included by begin.h inside
// the level's region. Where a level has an instruction that the compiler would not pick, its branch stands here; whole
// contraction tiles stand in their own files.

#if defined(OPS_TRANSFORMER_ISA_avx512) || defined(OPS_TRANSFORMER_ISA_avx512_vnni) || \
    defined(OPS_TRANSFORMER_ISA_avx512_bf16)
  #define OPS_TRANSFORMER_SIMD_512 1
#elif defined(OPS_TRANSFORMER_ISA_avx2) || defined(OPS_TRANSFORMER_ISA_avx2_vnni)
  #define OPS_TRANSFORMER_SIMD_256 1
#endif
#if defined(OPS_TRANSFORMER_SIMD_512)
inline constexpr int kVectorBytes = 64;
#elif defined(OPS_TRANSFORMER_SIMD_256)
inline constexpr int kVectorBytes = 32;
#else
inline constexpr int kVectorBytes = 16;
#endif
inline constexpr int kLanes = kVectorBytes / 4;
#if defined(OPS_TRANSFORMER_ISA_avx512_bf16)
inline constexpr bool kHasBf16Dot = true;
#else
inline constexpr bool kHasBf16Dot = false;
#endif

template <int Bytes>
struct VectorTypes {
  typedef float F32 __attribute__((vector_size(Bytes)));
  typedef std::int32_t I32 __attribute__((vector_size(Bytes)));
  typedef std::uint32_t U32 __attribute__((vector_size(Bytes)));
};
using F32 = VectorTypes<kVectorBytes>::F32;
using I32 = VectorTypes<kVectorBytes>::I32;
using U32 = VectorTypes<kVectorBytes>::U32;
typedef std::uint16_t U16Half __attribute__((vector_size(kVectorBytes / 2)));  // kLanes values of 16 bits

#define OPS_TRANSFORMER_INLINE inline __attribute__((always_inline))

OPS_TRANSFORMER_INLINE F32 load(const float* p) noexcept {
  F32 v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
OPS_TRANSFORMER_INLINE void store(float* p, F32 v) noexcept { __builtin_memcpy(p, &v, sizeof v); }
OPS_TRANSFORMER_INLINE F32 splat(float x) noexcept { return x - F32{}; }
OPS_TRANSFORMER_INLINE I32 splat_int(std::int32_t x) noexcept { return x - I32{}; }

// a * b + c, rounded once where the level has FMA.
OPS_TRANSFORMER_INLINE F32 fma(F32 a, F32 b, F32 c) noexcept {
#if defined(OPS_TRANSFORMER_SIMD_512)
  return (F32)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(OPS_TRANSFORMER_SIMD_256)
  return (F32)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
  return a * b + c;
#endif
}

// Lane by lane, the second operand where either is NaN (as x86's max and min).
OPS_TRANSFORMER_INLINE F32 max(F32 a, F32 b) noexcept { return a > b ? a : b; }
OPS_TRANSFORMER_INLINE F32 min(F32 a, F32 b) noexcept { return a < b ? a : b; }
OPS_TRANSFORMER_INLINE F32 abs(F32 a) noexcept { return (F32)((I32)a & 0x7fffffff); }

// Lane sums and maxima, halving; the same order at every call.
OPS_TRANSFORMER_INLINE float sum(F32 v) noexcept {
  float t[kLanes];
  store(t, v);
  for (int width = kLanes / 2; width; width /= 2) {
    for (int i = 0; i < width; ++i) t[i] += t[i + width];
  }
  return t[0];
}
OPS_TRANSFORMER_INLINE float max_lane(F32 v) noexcept {
  float t[kLanes];
  store(t, v);
  for (int width = kLanes / 2; width; width /= 2) {
    for (int i = 0; i < width; ++i) t[i] = t[i] > t[i + width] ? t[i] : t[i + width];
  }
  return t[0];
}

// First n of kLanes floats; the rest of the vector is zero, the rest of the memory untouched.
OPS_TRANSFORMER_INLINE F32 load_first(const float* p, int n) noexcept {
#if defined(OPS_TRANSFORMER_SIMD_512)
  return (F32)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1u), p);
#else
  F32 v{};
  __builtin_memcpy(&v, p, std::size_t(n) * sizeof(float));
  return v;
#endif
}
OPS_TRANSFORMER_INLINE void store_first(float* p, F32 v, int n) noexcept {
#if defined(OPS_TRANSFORMER_SIMD_512)
  _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1u), (__m512)v);
#else
  __builtin_memcpy(p, &v, std::size_t(n) * sizeof(float));
#endif
}

// bf16 and f16 in memory, float in registers.
OPS_TRANSFORMER_INLINE F32 widen_bf16(U16Half h) noexcept {
#if defined(OPS_TRANSFORMER_SIMD_512)
  return (F32)_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)h), 16);  // gcc 12 widens it in halves
#else
  return (F32)(__builtin_convertvector(h, I32) << 16);
#endif
}
OPS_TRANSFORMER_INLINE U16Half narrow_bf16_by_bits(F32 v) noexcept {
  const U32 bits = (U32)v;
  const U32 rounded = bits + 0x7fff + ((bits >> 16) & 1), quiet = bits | 0x400000;
  const U32 chosen = (bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded;
  return __builtin_convertvector(chosen >> 16, U16Half);
}
// Round to nearest even; NaN stays NaN.
OPS_TRANSFORMER_INLINE U16Half narrow_bf16(F32 v) noexcept {
#if defined(OPS_TRANSFORMER_ISA_avx512_bf16)
  // The instruction takes subnormals for zero.
  constexpr int kSubnormal = 0x20;
  if (__builtin_expect(_mm512_fpclass_ps_mask((__m512)v, kSubnormal) != 0, 0)) return narrow_bf16_by_bits(v);
  return (U16Half)_mm512_cvtneps_pbh((__m512)v);
#else
  return narrow_bf16_by_bits(v);
#endif
}
OPS_TRANSFORMER_INLINE F32 load(const BFloat16* p) noexcept {
  U16Half h;
  __builtin_memcpy(&h, p, sizeof h);
  return widen_bf16(h);
}
OPS_TRANSFORMER_INLINE void store(BFloat16* p, F32 v) noexcept {
  const U16Half h = narrow_bf16(v);
  __builtin_memcpy(p, &h, sizeof h);
}
OPS_TRANSFORMER_INLINE F32 load(const Float16* p) noexcept {
#if defined(OPS_TRANSFORMER_SIMD_512)
  return (F32)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p));
#elif defined(OPS_TRANSFORMER_SIMD_256)
  return (F32)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p));
#else
  F32 v;
  for (int i = 0; i < kLanes; ++i) v[i] = to_float(p[i]);
  return v;
#endif
}
OPS_TRANSFORMER_INLINE void store(Float16* p, F32 v) noexcept {
#if defined(OPS_TRANSFORMER_SIMD_512)
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT));
#elif defined(OPS_TRANSFORMER_SIMD_256)
  _mm_storeu_si128((__m128i*)p, _mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT));
#else
  for (int i = 0; i < kLanes; ++i) p[i] = to_float16(v[i]);
#endif
}
// Past the caches, which saves reading the lines that are overwritten; p aligned to the bytes stored. A fence, before
// another thread may read them.
OPS_TRANSFORMER_INLINE void stream(float* p, F32 v) noexcept {
#if defined(OPS_TRANSFORMER_SIMD_512)
  _mm512_stream_ps(p, (__m512)v);
#elif defined(OPS_TRANSFORMER_SIMD_256)
  _mm256_stream_ps(p, (__m256)v);
#elif defined(__x86_64__)
  _mm_stream_ps(p, (__m128)v);
#else
  store(p, v);
#endif
}
template <class T>
OPS_TRANSFORMER_INLINE void stream(T* p, F32 v) noexcept {
#if defined(OPS_TRANSFORMER_SIMD_512)
  T half[kLanes];
  store(half, v);
  _mm256_stream_si256((__m256i*)p, _mm256_loadu_si256((const __m256i*)half));
#else
  store(p, v);
#endif
}
OPS_TRANSFORMER_INLINE void stream_fence() noexcept {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}
template <class T>
OPS_TRANSFORMER_INLINE F32 load_first(const T* p, int n) noexcept {
  T padded[kLanes] = {};
  __builtin_memcpy(padded, p, std::size_t(n) * sizeof(T));
  return load(padded);
}
template <class T>
OPS_TRANSFORMER_INLINE void store_first(T* p, F32 v, int n) noexcept {
  T padded[kLanes];
  store(padded, v);
  __builtin_memcpy(p, padded, std::size_t(n) * sizeof(T));
}

// p * 2^n for whole n from -151 to 130; NaN where n is.
OPS_TRANSFORMER_INLINE F32 scale_by_power(F32 p, F32 n) noexcept {
#if defined(OPS_TRANSFORMER_SIMD_512)
  return (F32)_mm512_scalef_ps((__m512)p, (__m512)n);
#else
  // Two factors, so that results below 2^-126 round instead of wrapping.
  const I32 exponent = __builtin_convertvector(n == n ? n : F32{}, I32), half = exponent >> 1;
  const F32 scaled = p * (F32)((half + 127) << 23) * (F32)((exponent - half + 127) << 23);
  return n == n ? scaled : n;
#endif
}

// The nearest whole number, for |x| < 2^22; NaN for NaN.
OPS_TRANSFORMER_INLINE F32 round(F32 x) noexcept { return (x + splat(12582912.0f)) - splat(12582912.0f); }

// 2^x. Relative error <= 2e-7, exact for whole x; 0 below -150 and for -inf, inf above 128, NaN for NaN.
OPS_TRANSFORMER_INLINE F32 exp2(F32 x) noexcept {
#if defined(OPS_TRANSFORMER_SIMD_512)
  const F32 floor = x,
            fraction = (F32)_mm512_reduce_ps((__m512)x, 0x01);  // x - floor(x); scalef takes the floor itself
#else
  const F32 clamped = max(splat(-151.0f), min(splat(129.0f), x));
  const F32 nearest = round(clamped);
  const F32 floor = nearest > clamped ? nearest - splat(1.0f) : nearest;
  const F32 fraction = clamped - floor;
#endif
  // Fitted with the constant fixed at 1.
  F32 p = splat(1.86713284e-3f);
  p = fma(p, fraction, splat(9.01704282e-3f));
  p = fma(p, fraction, splat(5.57999238e-2f));
  p = fma(p, fraction, splat(2.40164459e-1f));
  p = fma(p, fraction, splat(6.93151295e-1f));
  p = fma(p, fraction, splat(1.0f));
  return scale_by_power(p, floor);
}

// e^x = 2^n e^r, r = x - n ln 2 in two parts, the first of which is exact without FMA as well. Relative error <= 1e-7;
// 0 below -104 and for -inf, inf above 88.73, NaN for NaN. The polynomial is Cephes' expf.
OPS_TRANSFORMER_INLINE F32 exp(F32 x) noexcept {
  const F32 clamped = max(splat(-105.0f), min(splat(90.0f), x));
  const F32 n = round(clamped * splat(1.44269504f));
  const F32 r = fma(n, splat(2.12194440e-4f), fma(n, splat(-0.693359375f), clamped));
  F32 p = splat(1.9875691500e-4f);
  p = fma(p, r, splat(1.3981999507e-3f));
  p = fma(p, r, splat(8.3334519073e-3f));
  p = fma(p, r, splat(4.1665795894e-2f));
  p = fma(p, r, splat(1.6666665459e-1f));
  p = fma(p, r, splat(5.0000001201e-1f));
  return scale_by_power(fma(p * r, r, r) + splat(1.0f), n);
}

// tanh by an odd polynomial near zero and by exp elsewhere; relative error <= 2e-7.
OPS_TRANSFORMER_INLINE F32 tanh(F32 x) noexcept {
  const F32 magnitude = abs(x), square = x * x;
  F32 small = splat(-5.70498872745e-3f);
  small = fma(small, square, splat(2.06390887954e-2f));
  small = fma(small, square, splat(-5.37397155531e-2f));
  small = fma(small, square, splat(1.33314422036e-1f));
  small = fma(small, square, splat(-3.33332819422e-1f));
  small = fma(small * square, x, x);
  const F32 e = exp(splat(2.0f) * min(magnitude, splat(10.0f)));
  const F32 large = splat(1.0f) - splat(2.0f) / (e + splat(1.0f));
  const F32 unsigned_result = magnitude < splat(0.625f) ? abs(small) : large;
  const F32 result = (F32)((I32)unsigned_result | ((I32)x & (std::int32_t)0x80000000));
  return x == x ? result : x;
}
