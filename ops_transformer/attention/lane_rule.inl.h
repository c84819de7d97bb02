// SPDX-License-Identifier: Apache-2.0
// ScoreRule with queries in the lanes. Each step is a pass of its own over scores in L1: a pass costs a few cycles a
// vector, the products of a score 128 and more. Included inside a level's region, after score_rule.inl.h and
// lane_shuffle.inl.h.

inline constexpr int kBlockLanes = kTileVectors * kLanes;

struct LaneRows {
  std::int32_t position[kLanes];
  std::int32_t query[kLanes], head[kLanes];
  float slope[kLanes];
  std::int64_t bias[kLanes], visible[kLanes], dropout[kLanes];  // offsets of the rows of the grids

  OPS_TRANSFORMER_INLINE void set(const AttentionArgs& args, const AttentionSequence& sequence, int lane,
                                  RowPlace place) noexcept {
    query[lane] = std::int32_t(place.query);
    head[lane] = std::int32_t(place.head);
    position[lane] = std::int32_t(place.query + sequence.first_position);
    slope[lane] = args.rule.alibi_slopes ? args.rule.alibi_slopes[place.head] * kLog2E : 0.0f;
    bias[lane] = grid_offset(args.rule.bias, sequence.bias_offset, place);
    visible[lane] = grid_offset(args.rule.visible, sequence.visible_offset, place);
    dropout[lane] = grid_offset(args.dropout, sequence.dropout_offset, place);
  }
};

#if defined(OPS_TRANSFORMER_SIMD_512)
OPS_TRANSFORMER_INLINE __m128i load_16_bytes(const std::byte* p) noexcept {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}
#endif
// 16 bytes of each lane's row: dwords[d] lane i is dword d of row i. p[i]: where row i stands.
OPS_TRANSFORMER_INLINE void load_quads(const std::byte* const (&p)[kLanes], F32 (&dwords)[4]) noexcept {
  F32 pieces[4];  // piece r: the rows r, r + 4, ... side by side
  for (int r = 0; r < 4; ++r) {
#if defined(OPS_TRANSFORMER_SIMD_512)
    __m512i piece = _mm512_castsi128_si512(load_16_bytes(p[r]));
    piece = _mm512_inserti32x4(piece, load_16_bytes(p[4 + r]), 1);
    piece = _mm512_inserti32x4(piece, load_16_bytes(p[8 + r]), 2);
    pieces[r] = (F32)_mm512_inserti32x4(piece, load_16_bytes(p[12 + r]), 3);
#else
    for (int i = 0; i < kLanes / 4; ++i)
      __builtin_memcpy(reinterpret_cast<std::byte*>(&pieces[r]) + 16 * i, p[4 * i + r], 16);
#endif
  }
  const F32 low_ab = unpack_singles<0>(pieces[0], pieces[1], AllLanes{});
  const F32 high_ab = unpack_singles<1>(pieces[0], pieces[1], AllLanes{});
  const F32 low_cd = unpack_singles<0>(pieces[2], pieces[3], AllLanes{});
  const F32 high_cd = unpack_singles<1>(pieces[2], pieces[3], AllLanes{});
  dwords[0] = unpack_pairs<0>(low_ab, low_cd, AllLanes{});
  dwords[1] = unpack_pairs<1>(low_ab, low_cd, AllLanes{});
  dwords[2] = unpack_pairs<0>(high_ab, high_cd, AllLanes{});
  dwords[3] = unpack_pairs<1>(high_ab, high_cd, AllLanes{});
}

// Whether no lane's row hides any of the `n` keys from its offset on.
OPS_TRANSFORMER_INLINE bool all_visible(const std::byte* const (&p)[kLanes], std::int64_t n) noexcept {
  typedef std::uint8_t Bytes __attribute__((vector_size(kVectorBytes)));
  Bytes least{};
  least = ~least;
  std::int64_t key = 0;
  for (; key + kVectorBytes <= n; key += kVectorBytes) {
    for (int i = 0; i < kLanes; ++i) {
      Bytes row;
      __builtin_memcpy(&row, p[i] + key, sizeof row);
      least = least < row ? least : row;
    }
  }
  if (key < n) return false;
  std::uint64_t words[kVectorBytes / 8];
  __builtin_memcpy(words, &least, sizeof words);
  // A byte is zero.
  for (std::uint64_t word : words) {
    if ((word - 0x0101010101010101u) & ~word & 0x8080808080808080u) return false;
  }
  return true;
}

// Keys of a grid of bytes or of 16-bit floats with contiguous keys, as far as whole quads of dwords go; gives how many
// that are.
template <class Op>
std::int64_t apply_quads(const ScoreGrid& grid, const std::int64_t (&offsets)[kLanes], std::int64_t column,
                         std::int64_t num_keys, float* scores, const Op& op) noexcept {
  const std::int64_t bytes = grid.dtype == DType::boolean ? 1 : 2, keys = 16 / bytes;
  const std::byte* p[kLanes];
  for (int i = 0; i < kLanes; ++i) p[i] = static_cast<const std::byte*>(grid.data) + (offsets[i] + column) * bytes;
  if (grid.dtype == DType::boolean && all_visible(p, num_keys)) return num_keys;
  std::int64_t key = 0;
  for (; key + keys <= num_keys; key += keys) {
    F32 dwords[4];
    load_quads(p, dwords);
    for (int i = 0; i < kLanes; ++i) p[i] += 16;
    for (int d = 0; d < 4; ++d) {
      const I32 dword = (I32)dwords[d];
      float* at = scores + (key + d * keys / 4) * kBlockLanes;
      if (bytes == 1) {
        for (int i = 0; i < 4; ++i, at += kBlockLanes) {
          const I32 hidden = (I32)((dword & splat_int(0xff << (8 * i))) == 0);
          store(at, op(load(at), (F32)(hidden & splat_int(std::int32_t(0xff800000)))));
        }
      } else {
        store(at, op(load(at), (F32)(dword << 16)));
        at += kBlockLanes;
        store(at, op(load(at), (F32)(dword & splat_int(std::int32_t(0xffff0000)))));
      }
    }
  }
  return key;
}

// scores [num_keys][kBlockLanes], of which one vector of lanes; cells from column `column` on.
template <class Op>
void apply_grid(const ScoreGrid& grid, const std::int64_t (&offsets)[kLanes], std::int64_t column,
                std::int64_t num_keys, float* scores, const Op& op) noexcept {
  bool same = true;
  for (int i = 1; i < kLanes; ++i) same &= offsets[i] == offsets[0];
  std::int64_t key = 0;
  if (!same && grid.key_stride == 1) {
    // The same rows of the next tile of keys; their lines lie a whole row apart, which no hardware prefetcher follows.
    const std::int64_t bytes = grid.dtype == DType::boolean ? 1 : element_bytes_of(grid.dtype);
    for (int i = 0; i < kLanes; ++i) {
      prefetch_row(static_cast<const std::byte*>(grid.data) + (offsets[i] + column + num_keys) * bytes,
                   num_keys * bytes);
    }
  }
  if (!same && grid.key_stride == 1 && (grid.dtype == DType::boolean || grid.dtype == DType::bf16)) {
    key = apply_quads(grid, offsets, column, num_keys, scores, op);
  }
  for (; key < num_keys; key += kLanes) {
    const int n = int(num_keys - key < kLanes ? num_keys - key : kLanes);
    F32 cells[kLanes];
    if (same) {
      const F32 row = load_row_cells(grid, offsets[0], column + key, n);
      for (int i = 0; i < kLanes; ++i) cells[i] = splat(row[i]);
    } else {
      for (int i = 0; i < kLanes; ++i) cells[i] = load_row_cells(grid, offsets[i], column + key, n);
      transpose(cells);
    }
    for (int i = 0; i < n; ++i) {
      float* at = scores + (key + i) * kBlockLanes;
      store(at, op(load(at), cells[i]));
    }
  }
}

// scores of keys [first_key, first_key + num_keys).
__attribute__((noinline)) void apply_rule(const AttentionArgs& args, const LaneRows& rows,
                                          std::int64_t visible_first_key, std::int64_t first_key, std::int64_t num_keys,
                                          float* scores) noexcept {
  const ScoreRule& rule = args.rule;
  const AddBias add_bias{splat(rule.bias_scale)};
  if (rule.bias.data && rule.bias_first) apply_grid(rule.bias, rows.bias, first_key, num_keys, scores, add_bias);
  for (std::int64_t key = 0; key < num_keys; ++key) {
    store(scores + key * kBlockLanes, scaled_score(args, load(scores + key * kBlockLanes)));
  }
  if (rule.bias.data && !rule.bias_first) apply_grid(rule.bias, rows.bias, first_key, num_keys, scores, add_bias);
  if (rule.alibi_slopes) {
    I32 position;
    __builtin_memcpy(&position, rows.position, sizeof position);
    const F32 slope = load(rows.slope);
    for (std::int64_t key = 0; key < num_keys; ++key) {
      float* at = scores + key * kBlockLanes;
      store(at, less_distance(load(at), splat_int(std::int32_t(first_key + key)) - position, slope));
    }
  }
  if (!rule.visible.data) return;
  const std::int64_t skipped = visible_first_key > first_key ? visible_first_key - first_key : 0;
  apply_grid(rule.visible, rows.visible, first_key + skipped - visible_first_key, num_keys - skipped,
             scores + skipped * kBlockLanes, Hide{});
}

// Lanes from which a grid hides a key: all ones or zero.
I32 lanes_hidden(const AttentionArgs& args, const LaneRows& rows, std::int64_t visible_first_key,
                 std::int64_t key) noexcept {
  I32 hidden{};
  for (int i = 0; i < kLanes; ++i) {
    if (args.rule.bias.data && load_row_cells(args.rule.bias, rows.bias[i], key, 1)[0] == kMinusInfinity) {
      hidden[i] = -1;
    }
    if (args.rule.visible.data && key >= visible_first_key &&
        load_row_cells(args.rule.visible, rows.visible[i], key - visible_first_key, 1)[0] == kMinusInfinity) {
      hidden[i] = -1;
    }
  }
  return hidden;
}
