// SPDX-License-Identifier: Apache-2.0
// Transposes and sums across lanes by two-operand shuffles with constant indices; the compiler picks the instruction.
// Included inside a level's region, after simd/begin.h.

// The index that takes lane `lane` of a result: below kLanes from a, from kLanes on from b. A struct with a pack of
// lane numbers expands to the index list.
template <int... Lanes>
struct LaneList {};
template <int Count, int... Lanes>
struct MakeLaneList : MakeLaneList<Count - 1, Count - 1, Lanes...> {};
template <int... Lanes>
struct MakeLaneList<0, Lanes...> {
  using Type = LaneList<Lanes...>;
};
using AllLanes = MakeLaneList<kLanes>::Type;

// Blocks of 4 lanes: [a0 b0 a1 b1] (half 0) or [a2 b2 a3 b3] (half 1).
template <int Half, int... Lanes>
OPS_TRANSFORMER_INLINE F32 unpack_singles(F32 a, F32 b, LaneList<Lanes...>) noexcept {
  return __builtin_shufflevector(a, b, ((Lanes & ~3) + 2 * Half + ((Lanes & 3) >> 1) + ((Lanes & 1) ? kLanes : 0))...);
}
// Blocks of 4 lanes: [a0 a1 b0 b1] or [a2 a3 b2 b3].
template <int Half, int... Lanes>
OPS_TRANSFORMER_INLINE F32 unpack_pairs(F32 a, F32 b, LaneList<Lanes...>) noexcept {
  return __builtin_shufflevector(a, b, ((Lanes & ~3) + 2 * Half + (Lanes & 1) + ((Lanes & 2) ? kLanes : 0))...);
}
// Even (half 0) or odd blocks of 4 lanes of a, then of b.
template <int Half, int... Lanes>
OPS_TRANSFORMER_INLINE F32 unpack_blocks(F32 a, F32 b, LaneList<Lanes...>) noexcept {
  return __builtin_shufflevector(a, b, (2 * (Lanes & ~3) + 4 * Half + (Lanes & 3))...);
}

OPS_TRANSFORMER_INLINE F32 add_singles(F32 a, F32 b) noexcept {
  return unpack_singles<0>(a, b, AllLanes{}) + unpack_singles<1>(a, b, AllLanes{});
}
OPS_TRANSFORMER_INLINE F32 add_pairs(F32 a, F32 b) noexcept {
  return unpack_pairs<0>(a, b, AllLanes{}) + unpack_pairs<1>(a, b, AllLanes{});
}
OPS_TRANSFORMER_INLINE F32 add_blocks(F32 a, F32 b) noexcept {
  return unpack_blocks<0>(a, b, AllLanes{}) + unpack_blocks<1>(a, b, AllLanes{});
}

// In each block of 4 lanes: partial sums of a, b, c, d in this order.
OPS_TRANSFORMER_INLINE F32 sum_four(F32 a, F32 b, F32 c, F32 d) noexcept {
  return add_pairs(add_singles(a, b), add_singles(c, d));
}
// From kLanes / 4 results of sum_four: lane i is the sum of all lanes of input i.
OPS_TRANSFORMER_INLINE F32 sum_blocks(const F32* quads) noexcept {
  if constexpr (kLanes == 16) {
    return add_blocks(add_blocks(quads[0], quads[1]), add_blocks(quads[2], quads[3]));
  } else if constexpr (kLanes == 8) {
    return add_blocks(quads[0], quads[1]);
  } else {
    return quads[0];
  }
}

// The maximum over lanes, in every lane; NaN is not kept.
template <int Distance, int... Lanes>
OPS_TRANSFORMER_INLINE F32 max_over_distance(F32 v, LaneList<Lanes...>) noexcept {
  return max(v, __builtin_shufflevector(v, v, (Lanes ^ Distance)...));
}
OPS_TRANSFORMER_INLINE F32 max_in_every_lane(F32 v) noexcept {
  if constexpr (kLanes >= 16) v = max_over_distance<8>(v, AllLanes{});
  if constexpr (kLanes >= 8) v = max_over_distance<4>(v, AllLanes{});
  v = max_over_distance<2>(v, AllLanes{});
  return max_over_distance<1>(v, AllLanes{});
}

// True where a lane of the mask (0 or -1) is set.
OPS_TRANSFORMER_INLINE bool any_lane(I32 mask) noexcept {
#if defined(OPS_TRANSFORMER_SIMD_512)
  return _mm512_movepi32_mask((__m512i)mask) != 0;
#elif defined(OPS_TRANSFORMER_SIMD_256)
  return _mm256_movemask_ps((__m256)mask) != 0;
#else
  return (mask[0] | mask[1] | mask[2] | mask[3]) != 0;
#endif
}

// Lanes without the bit Distance from a and from b shifted up, or the others from a shifted down and from b: one step
// of a transpose by halves.
template <int Distance, int Half, int... Lanes>
OPS_TRANSFORMER_INLINE F32 exchange(F32 a, F32 b, LaneList<Lanes...>) noexcept {
  return __builtin_shufflevector(
      a, b, ((Lanes & Distance) == 0 ? Lanes + (Half ? Distance : 0) : kLanes + Lanes - (Half ? 0 : Distance))...);
}
template <int Distance>
OPS_TRANSFORMER_INLINE void transpose_step(F32 (&rows)[kLanes]) noexcept {
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) {
    if (i & Distance) continue;
    const F32 a = rows[i], b = rows[i + Distance];
    rows[i] = exchange<Distance, 0>(a, b, AllLanes{});
    rows[i + Distance] = exchange<Distance, 1>(a, b, AllLanes{});
  }
}
// rows[i] lane j becomes rows[j] lane i.
OPS_TRANSFORMER_INLINE void transpose(F32 (&rows)[kLanes]) noexcept {
  transpose_step<1>(rows);
  transpose_step<2>(rows);
  if constexpr (kLanes >= 8) transpose_step<4>(rows);
  if constexpr (kLanes >= 16) transpose_step<8>(rows);
}
