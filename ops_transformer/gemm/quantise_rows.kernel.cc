// SPDX-License-Identifier: Apache-2.0
// levels: generic avx2 avx2_vnni avx512 avx512_vnni
#include "ops_transformer/gemm/quantise_rows_kernel.h"

#include "ops_transformer/simd/begin.h"

namespace ops_transformer::OPS_TRANSFORMER_ISA {
namespace {

constexpr int kVectors = kQuantBlockLen / kLanes;
typedef std::int8_t Codes __attribute__((vector_size(kLanes)));

#if defined(OPS_TRANSFORMER_SIMD_512)
OPS_TRANSFORMER_INLINE std::int32_t max_lane_int(I32 v) noexcept { return _mm512_reduce_max_epi32((__m512i)v); }
OPS_TRANSFORMER_INLINE std::int32_t sum_lanes_int(I32 v) noexcept { return _mm512_reduce_add_epi32((__m512i)v); }
#elif defined(OPS_TRANSFORMER_SIMD_256)
OPS_TRANSFORMER_INLINE std::int32_t max_lane_int(I32 v) noexcept {
  __m128i m = _mm_max_epi32(_mm256_castsi256_si128((__m256i)v), _mm256_extracti128_si256((__m256i)v, 1));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
  return _mm_cvtsi128_si32(_mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1)));
}
OPS_TRANSFORMER_INLINE std::int32_t sum_lanes_int(I32 v) noexcept {
  __m128i m = _mm_add_epi32(_mm256_castsi256_si128((__m256i)v), _mm256_extracti128_si256((__m256i)v, 1));
  m = _mm_add_epi32(m, _mm_shuffle_epi32(m, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(m, _mm_shuffle_epi32(m, 0xb1)));
}
#else
OPS_TRANSFORMER_INLINE std::int32_t max_lane_int(I32 v) noexcept {
  const std::int32_t a = v[0] > v[1] ? v[0] : v[1], b = v[2] > v[3] ? v[2] : v[3];
  return a > b ? a : b;
}
OPS_TRANSFORMER_INLINE std::int32_t sum_lanes_int(I32 v) noexcept { return v[0] + v[1] + v[2] + v[3]; }
#endif

OPS_TRANSFORMER_INLINE void quantise_block(const F32 (&values)[kVectors], QuantisedBlock& out) noexcept {
  // Magnitudes compare as integers: there NaN is above infinity, and infinity above every number.
  I32 largest{};
  for (int v = 0; v < kVectors; ++v) {
    const I32 magnitude = (I32)values[v] & 0x7fffffff;
    largest = magnitude > largest ? magnitude : largest;
  }
  const std::int32_t largest_bits = max_lane_int(largest);
  const bool finite = largest_bits < 0x7f800000;
  float most;
  __builtin_memcpy(&most, &largest_bits, sizeof most);
  // 127 / most overflows below 2^-121: smaller blocks are scaled up first, which is exact.
  const float up = most < 0x1p-100f ? 0x1p100f : 1.0f;
  const F32 inverse = splat(finite && most > 0.0f ? 127.0f / (most * up) : 0.0f);
  // Adding 1.5 * 2^23 leaves the nearest integer, ties to even, in the low bits.
  const F32 magic = splat(12582912.0f);
  I32 totals[2] = {};
  for (int v = 0; v < kVectors; ++v) {
    const F32 value = finite ? values[v] * splat(up) : F32{};
    const I32 code = (I32)(value * inverse + magic) - 0x4b400000;
    totals[2 * v / kVectors] += code;
    const Codes narrow = __builtin_convertvector(code, Codes);
    __builtin_memcpy(out.codes + v * kLanes, &narrow, sizeof narrow);
  }
  out.first_sum = sum_lanes_int(totals[0]);
  out.sum = sum_lanes_int(totals[0] + totals[1]);
  out.scale = finite ? most / 127.0f : __builtin_nanf("");
  out.scaled_sum = out.scale * float(out.sum);
}

template <class T>
OPS_TRANSFORMER_INLINE void quantise_whole(const T* x, QuantisedBlock& out) noexcept {
  F32 values[kVectors];
  for (int v = 0; v < kVectors; ++v) values[v] = load(x + v * kLanes);
  quantise_block(values, out);
}

#if defined(OPS_TRANSFORMER_SIMD_512)
// Lane b: what `combine` makes of all lanes of vectors[b].
template <class Combine>
OPS_TRANSFORMER_INLINE __m128i reduce_four(const __m512i (&v)[4], Combine combine) noexcept {
  const __m512i a = combine(_mm512_unpacklo_epi32(v[0], v[1]), _mm512_unpackhi_epi32(v[0], v[1]));
  const __m512i b = combine(_mm512_unpacklo_epi32(v[2], v[3]), _mm512_unpackhi_epi32(v[2], v[3]));
  const __m512i c = combine(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
  const __m512i d = combine(c, _mm512_shuffle_i64x2(c, c, 0x4e));
  return _mm512_castsi512_si128(combine(d, _mm512_shuffle_i64x2(d, d, 0xb1)));
}
struct Larger {
  OPS_TRANSFORMER_INLINE __m512i operator()(__m512i a, __m512i b) const noexcept { return _mm512_max_epi32(a, b); }
};
struct Sum {
  OPS_TRANSFORMER_INLINE __m512i operator()(__m512i a, __m512i b) const noexcept { return _mm512_add_epi32(a, b); }
};

// Four blocks, whose maxima and sums share their shuffles and whose divisions are one. False, with nothing written,
// where a block has a value that is not finite, is zero, or is so small that 127 / max|x| might overflow.
template <class T>
OPS_TRANSFORMER_INLINE bool quantise_four(const T* x, QuantisedBlock* out) noexcept {
  F32 values[4][2];
  __m512i magnitudes[4], firsts[4], totals[4];
  for (int b = 0; b < 4; ++b) {
    values[b][0] = load(x + 32 * b);
    values[b][1] = load(x + 32 * b + 16);
    const __m512i mask = _mm512_set1_epi32(0x7fffffff);
    magnitudes[b] =
        _mm512_max_epi32(_mm512_and_si512((__m512i)values[b][0], mask), _mm512_and_si512((__m512i)values[b][1], mask));
  }
  const __m128i largest = reduce_four(magnitudes, Larger{});
  const __m128i ordinary = _mm_and_si128(_mm_cmpgt_epi32(largest, _mm_set1_epi32(0x0d800000)),  // 2^-100
                                         _mm_cmplt_epi32(largest, _mm_set1_epi32(0x7f800000)));
  if (_mm_movemask_epi8(ordinary) != 0xffff) return false;
  const __m128 most = _mm_castsi128_ps(largest), steps = _mm_set1_ps(127.0f);
  alignas(16) float inverse[4], scale[4], scaled_sum[4];
  alignas(16) std::int32_t sum[4], first_sum[4];
  _mm_store_ps(inverse, _mm_div_ps(steps, most));
  for (int b = 0; b < 4; ++b) {
    // Rounds to the nearest integer, ties to even.
    const __m512i low = _mm512_cvtps_epi32((__m512)(values[b][0] * splat(inverse[b])));
    const __m512i high = _mm512_cvtps_epi32((__m512)(values[b][1] * splat(inverse[b])));
    _mm_storeu_si128((__m128i*)out[b].codes, _mm512_cvtepi32_epi8(low));
    _mm_storeu_si128((__m128i*)(out[b].codes + 16), _mm512_cvtepi32_epi8(high));
    firsts[b] = low;
    totals[b] = _mm512_add_epi32(low, high);
  }
  const __m128i sums = reduce_four(totals, Sum{});
  const __m128 scales = _mm_div_ps(most, steps);
  _mm_store_ps(scale, scales);
  _mm_store_ps(scaled_sum, _mm_mul_ps(scales, _mm_cvtepi32_ps(sums)));
  _mm_store_si128((__m128i*)sum, sums);
  _mm_store_si128((__m128i*)first_sum, reduce_four(firsts, Sum{}));
  for (int b = 0; b < 4; ++b) {
    out[b].scale = scale[b];
    out[b].scaled_sum = scaled_sum[b];
    out[b].sum = sum[b];
    out[b].first_sum = first_sum[b];
  }
  return true;
}
#else
template <class T>
OPS_TRANSFORMER_INLINE bool quantise_four(const T*, QuantisedBlock*) noexcept {
  return false;
}
#endif

template <class T>
void quantise_row(const T* x, std::int64_t num_inputs, QuantisedBlock* out) noexcept {
  for (; num_inputs >= 4 * kQuantBlockLen; num_inputs -= 4 * kQuantBlockLen, x += 4 * kQuantBlockLen, out += 4) {
    if (quantise_four(x, out)) continue;
    for (int b = 0; b < 4; ++b) quantise_whole(x + b * kQuantBlockLen, out[b]);
  }
  for (; num_inputs >= kQuantBlockLen; num_inputs -= kQuantBlockLen, x += kQuantBlockLen, ++out)
    quantise_whole(x, *out);
  if (num_inputs > 0) {
    F32 values[kVectors] = {};
    for (int v = 0; v * kLanes < num_inputs; ++v) {
      const std::int64_t left = num_inputs - v * kLanes;
      values[v] = left >= kLanes ? load(x + v * kLanes) : load_first(x + v * kLanes, int(left));
    }
    quantise_block(values, *out);
  }
}

}  // namespace

void quantise_rows(const PrepareArgs& args, std::int64_t first_row, std::int64_t last_row) noexcept {
  for (std::int64_t row = first_row; row < last_row; ++row) {
    auto* out = reinterpret_cast<QuantisedBlock*>(args.prepared + row * args.prepared_row_bytes);
    const std::int64_t begin = row * args.x_stride;
    if (args.x_dtype == DType::f32) {
      quantise_row(static_cast<const float*>(args.x) + begin, args.num_inputs, out);
    } else if (args.x_dtype == DType::bf16) {
      quantise_row(static_cast<const BFloat16*>(args.x) + begin, args.num_inputs, out);
    } else {
      quantise_row(static_cast<const Float16*>(args.x) + begin, args.num_inputs, out);
    }
  }
}

}  // namespace ops_transformer::OPS_TRANSFORMER_ISA
#include "ops_transformer/simd/end.h"
