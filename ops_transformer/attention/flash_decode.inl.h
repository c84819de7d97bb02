// SPDX-License-Identifier: Apache-2.0
// Attention of one query: the rows of a group against keys that all of them see. Keys and values are read where they
// lie, a block of keys at a time; a register tile of kKeysAtOnce keys and up to kRowsAtOnce rows loads each key once.
// Included inside a level's region; `Keys` says how a row of keys is multiplied.

#if defined(OPS_TRANSFORMER_SIMD_512)
inline constexpr int kRowsAtOnce = 4, kValueVectors = 4;  // 4 x 4 sums, 4 keys, 1 query of 32 registers
#else
inline constexpr int kRowsAtOnce = 2, kValueVectors = 4;  // 2 x 4 sums, 4 keys, 1 query of 16 registers
#endif
inline constexpr int kKeysAtOnce = 4;
inline constexpr int kBlockKeys = 64;

// Where the keys of a block lie. Past the last key the offset of the last one repeats.
struct KeyRows {
  std::int64_t k[kBlockKeys], v[kBlockKeys];
  int num_keys;
};
void find_rows(const AttentionArgs& args, const AttentionSequence& sequence, const AttentionItem& item,
               std::int64_t first, KeyRows& rows) noexcept {
  const std::int64_t left = item.last_key - first;
  rows.num_keys = int(left < kBlockKeys ? left : kBlockKeys);
  locate_keys(args, sequence, item.kv_head, first, rows.num_keys, rows.k, rows.v);
  for (int i = rows.num_keys; i < kBlockKeys; ++i) {
    rows.k[i] = rows.k[rows.num_keys - 1];
    rows.v[i] = rows.v[rows.num_keys - 1];
  }
}

#include "ops_transformer/attention/decode_codes.inl.h"

// f32 sums over keys of type T; weights stay f32.
template <class T>
struct WidenedKeys {
  using Element = T;
  using Weight = float;
  static constexpr int kStep = kLanes;  // elements of a row in one load
  static constexpr bool kCoded = sizeof(T) == 1;
  static constexpr int kKeysPerWeight = 1;  // keys that one step of the second product takes

  static void pack_query(const AttentionArgs& args, std::int64_t offset, F32* row) noexcept {
    for (std::int64_t d = 0; d < args.head_dim; d += kLanes) {
      const int lanes = int(args.head_dim - d < kLanes ? args.head_dim - d : kLanes);
      const F32 value = load_query(args, offset + d, lanes);
      row[d / kLanes] = args.negate_q ? -value : value;
    }
  }
  OPS_TRANSFORMER_INLINE static F32 load_key(const T* p) noexcept { return load(p); }
  OPS_TRANSFORMER_INLINE static F32 load_key_first(const T* p, int n) noexcept { return load_first(p, n); }
  OPS_TRANSFORMER_INLINE static F32 multiply(F32 key, F32 query, F32 sum) noexcept { return fma(key, query, sum); }

  OPS_TRANSFORMER_INLINE static F32 store_weights(float* weights, F32 w) noexcept {
    store(weights, w);
    return w;
  }

  // o [Rows][Vectors] += weight * value over the block; `tail` != 0: only so many values, in a last vector of its own.
  template <int Rows, int Vectors>
  OPS_TRANSFORMER_INLINE static void add_values(const T* values, const KeyRows& rows, const KeyRows& next,
                                                const float* weights, int tail, F32 (&o)[Rows][Vectors]) noexcept {
    for (int key = 0; key < rows.num_keys; ++key) {
      for (int line = 0; line * 64 < Vectors * kStep * int(sizeof(T)); ++line) {
        prefetch_to_l2(reinterpret_cast<const char*>(values + next.v[key]) + line * 64);
      }
      F32 value[Vectors];
#pragma GCC unroll 4
      for (int v = 0; v < Vectors; ++v) {
        const T* p = values + rows.v[key] + v * kLanes;
        value[v] = Vectors == 1 && tail ? load_first(p, tail) : load(p);
        OPS_TRANSFORMER_KEEP_IN_REGISTER(value[v]);
      }
#pragma GCC unroll 4
      for (int r = 0; r < Rows; ++r) {
        const F32 weight = splat(weights[r * kBlockKeys + key]);
#pragma GCC unroll 4
        for (int v = 0; v < Vectors; ++v) o[r][v] = fma(value[v], weight, o[r][v]);
      }
    }
  }
};

#if defined(OPS_TRANSFORMER_ISA_avx512_bf16)
// Dot products of bf16 pairs; weights are rounded to bf16 and the sum adds the rounded ones.
struct Bf16Keys {
  using Element = std::uint16_t;
  using Weight = std::uint16_t;
  static constexpr int kStep = 32;
  static constexpr bool kCoded = false;
  static constexpr int kKeysPerWeight = 2;

  static void pack_query(const AttentionArgs& args, std::int64_t offset, F32* row) noexcept {
    const I32 sign = splat_int(args.negate_q ? std::int32_t(0x80008000) : 0);
    for (std::int64_t d = 0; d < args.head_dim; d += kStep) {
      const int count = int(args.head_dim - d < kStep ? args.head_dim - d : kStep);
      row[d / kStep] = (F32)(load_bf16_pairs(args.q, args.q_dtype, offset + d, count) ^ sign);
    }
  }
  OPS_TRANSFORMER_INLINE static F32 load_key(const Element* p) noexcept { return (F32)_mm512_loadu_si512(p); }
  OPS_TRANSFORMER_INLINE static F32 load_key_first(const Element* p, int n) noexcept {
    return (F32)_mm512_maskz_loadu_epi16((1u << n) - 1u, p);
  }
  OPS_TRANSFORMER_INLINE static F32 multiply(F32 key, F32 query, F32 sum) noexcept {
    return (F32)_mm512_dpbf16_ps((__m512)sum, (__m512bh)key, (__m512bh)query);
  }

  OPS_TRANSFORMER_INLINE static F32 store_weights(Weight* weights, F32 w) noexcept {
    const U16Half rounded = narrow_bf16(w);
    __builtin_memcpy(weights, &rounded, sizeof rounded);
    return widen_bf16(rounded);
  }

  template <int Rows, int Vectors>
  OPS_TRANSFORMER_INLINE static void add_values(const Element* values, const KeyRows& rows, const KeyRows& next,
                                                const Weight* weights, int tail, F32 (&o)[Rows][Vectors]) noexcept {
    static_assert(Vectors % 2 == 0);
    const __mmask32 dims = tail ? (1u << tail) - 1u : ~0u;
    alignas(64) static constexpr Element kZeroRow[kMaxHeadDim] = {};
    for (int key = 0; key < rows.num_keys; key += 2) {
      const Element *even = values + rows.v[key], *odd = key + 1 < rows.num_keys ? values + rows.v[key + 1] : kZeroRow;
  #pragma GCC unroll 2
      for (int line = 0; line < Vectors / 2; ++line) {
        prefetch_to_l2(values + next.v[key] + line * 32);
        prefetch_to_l2(values + next.v[key + 1] + line * 32);
      }
  #pragma GCC unroll 2
      for (int half = 0; half < Vectors / 2; ++half) {
        __m512i a, b;
        if (Vectors == 2) {
          a = _mm512_maskz_loadu_epi16(dims, even);
          b = _mm512_maskz_loadu_epi16(dims, odd);
        } else {
          a = _mm512_loadu_si512(even + half * 32);
          b = _mm512_loadu_si512(odd + half * 32);
        }
        OPS_TRANSFORMER_KEEP_IN_REGISTER(a);
        OPS_TRANSFORMER_KEEP_IN_REGISTER(b);
        const __m512i low = interleave_low(a, b), high = interleave_high(a, b);
  #pragma GCC unroll 4
        for (int r = 0; r < Rows; ++r) {
          std::int32_t pair;
          __builtin_memcpy(&pair, weights + r * kBlockKeys + key, sizeof pair);
          const __m512bh weight = (__m512bh)_mm512_set1_epi32(pair);
          o[r][2 * half] = (F32)_mm512_dpbf16_ps((__m512)o[r][2 * half], (__m512bh)low, weight);
          o[r][2 * half + 1] = (F32)_mm512_dpbf16_ps((__m512)o[r][2 * half + 1], (__m512bh)high, weight);
        }
      }
    }
  }
};
#endif

// scores [Rows][kBlockKeys] = q k^T for all keys of the block.
template <class Keys, int Rows>
void score_rows(const AttentionArgs& args, const KeyRows& rows, const KeyRows& next, const F32* q,
                std::int64_t q_stride, float* scores) noexcept {
  using Element = typename Keys::Element;
  const auto* k = static_cast<const Element*>(args.k);
  const std::int64_t whole = args.head_dim / Keys::kStep;
  const int tail = int(args.head_dim % Keys::kStep);
  for (int group = 0; group < rows.num_keys; group += kLanes) {
    F32 quads[Rows][kLanes / 4];
    for (int quad = 0; quad < kLanes / 4; ++quad) {
      const int first = group + quad * kKeysAtOnce;
      const Element* key[kKeysAtOnce];
      F32 sum[Rows][kKeysAtOnce];
#pragma GCC unroll 4
      for (int i = 0; i < kKeysAtOnce; ++i) {
        key[i] = k + rows.k[first + i];
#pragma GCC unroll 4
        for (int r = 0; r < Rows; ++r) sum[r][i] = F32{};
      }
      // The next block's keys, row by row: a burst of prefetches is dropped when the miss buffers are full.
      for (int i = 0; i < kKeysAtOnce; ++i) {
        prefetch_row(k + next.k[first + i], args.head_dim * std::int64_t(sizeof(Element)));
      }
      for (std::int64_t step = 0; step < whole; ++step) {
        F32 row[kKeysAtOnce];
#pragma GCC unroll 4
        for (int i = 0; i < kKeysAtOnce; ++i) {
          row[i] = Keys::load_key(key[i] + step * Keys::kStep);
          OPS_TRANSFORMER_KEEP_IN_REGISTER(row[i]);
        }
#pragma GCC unroll 4
        for (int r = 0; r < Rows; ++r) {
          const F32 query = q[r * q_stride + step];
#pragma GCC unroll 4
          for (int i = 0; i < kKeysAtOnce; ++i) sum[r][i] = Keys::multiply(row[i], query, sum[r][i]);
        }
      }
      if (tail) {
#pragma GCC unroll 4
        for (int i = 0; i < kKeysAtOnce; ++i) {
          const F32 row = Keys::load_key_first(key[i] + whole * Keys::kStep, tail);
#pragma GCC unroll 4
          for (int r = 0; r < Rows; ++r) sum[r][i] = Keys::multiply(row, q[r * q_stride + whole], sum[r][i]);
        }
      }
#pragma GCC unroll 4
      for (int r = 0; r < Rows; ++r) quads[r][quad] = sum_four(sum[r][0], sum[r][1], sum[r][2], sum[r][3]);
    }
#pragma GCC unroll 4
    for (int r = 0; r < Rows; ++r) store(scores + r * kBlockKeys + group, sum_blocks(quads[r]));
  }
}

// State of a row: o [padded value_dim], maximum, and the sum lane by lane.
struct RowState {
  float* o;
  float m;
  F32 l;
};

// Scores of one row become weights; gives the factor by which its state shrinks.
template <class Keys>
OPS_TRANSFORMER_INLINE float weigh_row(float score_scale, int num_keys, float* scores, typename Keys::Weight* weights,
                                       RowState& state) noexcept {
  const int padded = (num_keys + kLanes - 1) / kLanes * kLanes;
  for (int key = num_keys; key < padded; ++key) scores[key] = kMinusInfinity;
  F32 most = splat(kMinusInfinity);
  for (int key = 0; key < padded; key += kLanes) most = max(most, load(scores + key));
  const F32 scale = splat(score_scale), before = splat(state.m);
  const F32 now = max(before, max_in_every_lane(most) * scale);
  const F32 factor = rescale_factor(before, now), m = finite_maximum(now);
  F32 sum = state.l * factor;
  for (int key = 0; key < padded; key += kLanes) {
    sum += Keys::store_weights(weights + key, exp2(fma(load(scores + key), scale, -m)));
  }
  state.m = now[0];
  state.l = sum;
  return factor[0];
}

template <class Keys, int Rows, int Vectors>
OPS_TRANSFORMER_INLINE void add_value_vectors(const AttentionArgs& args, const KeyRows& rows, const KeyRows& next,
                                              const typename Keys::Weight* weights, const float* factor,
                                              RowState* state, std::int64_t d, int tail) noexcept {
  F32 o[Rows][Vectors];
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) o[r][v] = load(state[r].o + d + v * kLanes) * splat(factor[r]);
  }
  Keys::template add_values<Rows, Vectors>(static_cast<const typename Keys::Element*>(args.v) + d, rows, next, weights,
                                           tail, o);
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) store(state[r].o + d + v * kLanes, o[r][v]);
  }
}

// state [Rows] += weights * values of a block.
template <class Keys, int Rows>
OPS_TRANSFORMER_INLINE void add_values(const AttentionArgs& args, const KeyRows& rows, const KeyRows& next,
                                       const typename Keys::Weight* weights, const float* factor,
                                       RowState* state) noexcept {
  constexpr int kFewVectors = Keys::kKeysPerWeight;  // a pair of rows fills two vectors at a time
  constexpr std::int64_t kManyDims = kValueVectors * kLanes, kFewDims = kFewVectors * kLanes;
  std::int64_t d = 0;
  for (; d + kManyDims <= args.value_dim; d += kManyDims) {
    add_value_vectors<Keys, Rows, kValueVectors>(args, rows, next, weights, factor, state, d, 0);
  }
  for (; d < args.value_dim; d += kFewDims) {
    const std::int64_t left = args.value_dim - d;
    add_value_vectors<Keys, Rows, kFewVectors>(args, rows, next, weights, factor, state, d,
                                               left < kFewDims ? int(left) : 0);
  }
}

// The same for one row that doesn't see every key of the block: values of hidden keys are not multiplied, since
// 0 * NaN would reach the sum. scores are -inf where a key is hidden.
template <class Keys>
__attribute__((noinline)) void add_seen_values(const AttentionArgs& args, const KeyRows& rows, const KeyRows& next,
                                               const float* scores, typename Keys::Weight* weights, float factor,
                                               RowState& state) noexcept {
  KeyRows seen{};
  for (int key = 0; key < rows.num_keys; ++key) {
    if (scores[key] == kMinusInfinity) continue;
    seen.v[seen.num_keys] = rows.v[key];
    weights[seen.num_keys++] = weights[key];
  }
  for (int key = seen.num_keys; key < kBlockKeys; ++key) weights[key] = {};
  add_values<Keys, 1>(args, seen, next, weights, &factor, &state);
}

template <class Keys, int Rows>
void attend_rows(const AttentionArgs& args, const RowRule* rules, std::int64_t first_key, const KeyRows& rows,
                 const KeyRows& next, const F32* q, std::int64_t q_stride, RowState* state, const BlockCodes& codes,
                 RowCodes* row_codes) noexcept {
  alignas(64) float scores[Rows * kBlockKeys];
  alignas(64) typename Keys::Weight weights[Rows * kBlockKeys];
  score_rows<Keys, Rows>(args, rows, next, q, q_stride, scores);
  float factor[Rows];
  bool hides = false;
  for (int r = 0; r < Rows; ++r) {
    float scale = args.score_scale;
    if constexpr (Keys::kCoded) scale_scores(args, codes, row_codes[r], rows.num_keys, scores + r * kBlockKeys);
    if (args.rule.any) {
      hides |= apply_rule(args, rules[r], first_key, rows.num_keys, scores + r * kBlockKeys);
      scale = 1.0f;
    }
    factor[r] = weigh_row<Keys>(scale, rows.num_keys, scores + r * kBlockKeys, weights + r * kBlockKeys, state[r]);
    if constexpr (Keys::kCoded) {
      scale_weights(args, codes, rows.num_keys, scores + r * kBlockKeys, factor[r], weights + r * kBlockKeys,
                    row_codes[r]);
    }
  }
  if (!hides) return add_values<Keys, Rows>(args, rows, next, weights, factor, state);
  for (int r = 0; r < Rows; ++r) {
    add_seen_values<Keys>(args, rows, next, scores + r * kBlockKeys, weights + r * kBlockKeys, factor[r], state[r]);
  }
}

template <class Keys>
void decode(const AttentionArgs& args, const AttentionSequence& sequence, const AttentionItem& whole_item,
            std::byte* scratch) noexcept {
  AttentionItem item = whole_item;
  const KeyRange seen = keys_seen(sequence, 0, item.first_key, item.last_key);
  item.first_key = seen.first;
  item.last_key = seen.last;
  const int num_rows = int(item.last_row - item.first_row);
  const auto layout = FlashDecodeLayout::make(args.head_dim, args.value_dim);
  const std::int64_t q_stride = layout.q_row_floats / kLanes;
  auto* q = reinterpret_cast<F32*>(scratch);
  auto* o = reinterpret_cast<float*>(q + num_rows * q_stride);
  RowState state[kMaxDecodeRows];
  RowRule rules[kMaxDecodeRows];
  BlockCodes codes;
  RowCodes row_codes[kMaxDecodeRows];
  for (int r = 0; r < num_rows; ++r) {
    const RowPlace place = row_place(args, item.kv_head, item.first_row + r);
    if (args.rule.any) rules[r] = rule_of(args, sequence, place);
    Keys::pack_query(args, q_offset(args, sequence, place), q + r * q_stride);
    if constexpr (Keys::kCoded) scale_query(args, item.kv_head, q + r * q_stride, row_codes[r]);
    state[r] = {o + r * layout.o_row_floats, kMinusInfinity, F32{}};
    for (std::int64_t d = 0; d < layout.o_row_floats; d += kLanes) store(state[r].o + d, F32{});
  }
  KeyRows buffers[2];
  if (item.first_key < item.last_key) find_rows(args, sequence, item, item.first_key, buffers[0]);
  int current = 0;
  for (std::int64_t key = item.first_key; key < item.last_key; key += kBlockKeys, current ^= 1) {
    const KeyRows& rows = buffers[current];
    const bool last = key + kBlockKeys >= item.last_key;
    if (!last) find_rows(args, sequence, item, key + kBlockKeys, buffers[current ^ 1]);
    const KeyRows& next = buffers[last ? current : current ^ 1];
    if (args.rule.visible.data && block_is_hidden(args, rules, num_rows, key, rows.num_keys)) continue;
    if constexpr (Keys::kCoded) find_codes(args, sequence, item.kv_head, key, rows.num_keys, codes);
    for (int r = 0; r < num_rows; r += kRowsAtOnce) {
      const int left = num_rows - r;
      const F32* query = q + r * q_stride;
      if constexpr (kRowsAtOnce == 4) {
        if (left >= 4) {
          attend_rows<Keys, 4>(args, rules + r, key, rows, next, query, q_stride, state + r, codes, row_codes + r);
          continue;
        }
        if (left == 3) {
          attend_rows<Keys, 3>(args, rules + r, key, rows, next, query, q_stride, state + r, codes, row_codes + r);
          continue;
        }
      }
      if (left >= 2) {
        attend_rows<Keys, 2>(args, rules + r, key, rows, next, query, q_stride, state + r, codes, row_codes + r);
      } else {
        attend_rows<Keys, 1>(args, rules + r, key, rows, next, query, q_stride, state + r, codes, row_codes + r);
      }
    }
  }
  for (int r = 0; r < num_rows; ++r) {
    float l = sum(state[r].l);
    if constexpr (Keys::kCoded) finish_values(args, item.kv_head, row_codes[r], l, state[r].o);
    const RowPlace place = row_place(args, item.kv_head, item.first_row + r);
    if (item.partial >= 0) {
      float* partial = partial_row(args, item, item.first_row + r);
      __builtin_memcpy(partial, state[r].o, std::size_t(args.value_dim) * sizeof(float));
      store_partial_sums(args, partial, state[r].m, l);
      continue;
    }
    F32 inverse = splat(1.0f);
    if (args.sinks) {
      F32 m = splat(state[r].m), sum_with_sink = splat(l);
      inverse = add_sink(splat(sink_of(args, place.head)), m, sum_with_sink);
      state[r].m = m[0];
      l = sum_with_sink[0];
    }
    inverse *= inverse_sum(splat(l));
    store_softmax(softmax_places(args, sequence, place), state[r].m * kLn2, l);
    for (std::int64_t d = 0; d < args.value_dim; d += kLanes) {
      const int lanes = int(args.value_dim - d < kLanes ? args.value_dim - d : kLanes);
      store_any(args.out, args.out_dtype, out_offset(args, sequence, place) + d, load(state[r].o + d) * inverse, lanes);
    }
  }
}
