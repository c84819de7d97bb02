// SPDX-License-Identifier: Apache-2.0
// Rotation of one head's row in registers, for this family's kernel and for those that fuse it (writing keys to a
// cache, packing queries). Needs posembedding/rope_kernel.h before the target region.

#include "ops_transformer/simd/interleave.inl.h"

struct Rotation {
  const float* cosines;  // [half]
  const float* sines;
};

// cos and sin of angles in 2^-32 turns. Range reduction to an eighth of a turn is exact; polynomials of degree 8 and 7,
// error <= 1.2e-7.
OPS_TRANSFORMER_INLINE void cos_sin(I32 turns, F32& cosine, F32& sine) noexcept {
  const I32 quadrant = ((turns >> 29) + 1) >> 1;                                                    // -2 … 2
  const F32 angle = __builtin_convertvector((turns << 2) >> 2, F32) * splat(1.46291807926716e-9f);  // 2 pi / 2^32
  const F32 square = angle * angle;
  F32 s = fma(square, splat(-1.9515295891e-4f), splat(8.3321608736e-3f));
  s = fma(s, square, splat(-1.6666654611e-1f));
  s = fma(s * square, angle, angle);
  F32 c = fma(square, splat(2.443315711809948e-5f), splat(-1.388731625493765e-3f));
  c = fma(c, square, splat(4.166664568298827e-2f));
  c = fma(c * square, square, fma(square, splat(-0.5f), splat(1.0f)));
  const I32 swap = (quadrant & 1) != 0;
  cosine = (F32)((I32)(swap ? s : c) ^ (((quadrant + 1) & 2) << 30));
  sine = (F32)((I32)(swap ? c : s) ^ ((quadrant & 2) << 30));
}

// Of pairs i … i + lanes - 1, for a position that is not in the table.
OPS_TRANSFORMER_INLINE void computed_rotation(const RopeAngles& angles, std::int64_t position, std::int64_t i,
                                              int lanes, F32& cosine, F32& sine) noexcept {
  std::int32_t turns[kLanes] = {};
  for (int j = 0; j < lanes; ++j) turns[j] = std::int32_t(turn_at(angles.turns[i + j], position) >> 32);
  I32 t;
  __builtin_memcpy(&t, turns, sizeof t);
  cos_sin(t, cosine, sine);
  cosine *= splat(angles.amplitude);
  sine *= splat(angles.amplitude);
}

// Where a position's cosines and sines are; computed into scratch[2 * half] if not in the table.
[[maybe_unused]] Rotation rotation_at(const RopeAngles& angles, std::int64_t position, float* scratch) noexcept {
  if (position >= 0 && position < angles.table_len) {
    return {angles.cosines + position * angles.row_stride, angles.sines + position * angles.row_stride};
  }
  float *cosines = scratch, *sines = scratch + angles.half;
  for (std::int64_t i = 0; i < angles.half; i += kLanes) {
    const int lanes = int(angles.half - i < kLanes ? angles.half - i : kLanes);
    F32 c, s;
    computed_rotation(angles, position, i, lanes, c, s);
    store_first(cosines + i, c, lanes);
    store_first(sines + i, s, lanes);
  }
  return {cosines, sines};
}

// Turns (first, second) by the angle of (cosine, sine), lane by lane.
OPS_TRANSFORMER_INLINE void rotate(F32& first, F32& second, F32 cosine, F32 sine) noexcept {
  const F32 x = first, y = second;
  first = fma(x, cosine, -(y * sine));
  second = fma(y, cosine, x * sine);
}

template <class T>
OPS_TRANSFORMER_INLINE F32 load_lanes(const T* p, int n) noexcept {
  return n == kLanes ? load(p) : load_first(p, n);
}
template <class T>
OPS_TRANSFORMER_INLINE void store_lanes(T* p, F32 v, int n) noexcept {
  n == kLanes ? store(p, v) : store_first(p, v, n);
}

// One head: x[head_dim] to out[head_dim], which may be x. Dimensions past 2 * half are copied.
template <class In, class Out>
void rotate_head(const In* x, Out* out, std::int64_t head_dim, const RopeAngles& angles, Rotation rotation) noexcept {
  const std::int64_t half = angles.half;
  for (std::int64_t i = 0; i < half; i += kLanes) {
    const int lanes = int(half - i < kLanes ? half - i : kLanes);
    const F32 cosine = load_lanes(rotation.cosines + i, lanes), sine = load_lanes(rotation.sines + i, lanes);
    if (angles.interleaved) {
      const int low = 2 * lanes < kLanes ? 2 * lanes : kLanes, high = 2 * lanes - low;
      const F32 a = load_lanes(x + 2 * i, low), b = high ? load_lanes(x + 2 * i + kLanes, high) : F32{};
      F32 even = even_lanes(a, b), odd = odd_lanes(a, b);
      rotate(even, odd, cosine, sine);
      store_lanes(out + 2 * i, interleave_low(even, odd), low);
      if (high) store_lanes(out + 2 * i + kLanes, interleave_high(even, odd), high);
    } else {
      F32 first = load_lanes(x + i, lanes), second = load_lanes(x + half + i, lanes);
      rotate(first, second, cosine, sine);
      store_lanes(out + i, first, lanes);
      store_lanes(out + half + i, second, lanes);
    }
  }
  if (static_cast<const void*>(x) == static_cast<const void*>(out)) return;
  for (std::int64_t i = 2 * half; i < head_dim; i += kLanes) {
    const int lanes = int(head_dim - i < kLanes ? head_dim - i : kLanes);
    store_lanes(out + i, load_lanes(x + i, lanes), lanes);
  }
}
