// SPDX-License-Identifier: Apache-2.0
// The steps of ScoreRule, one vector at a time: scores come as plain products and leave in powers of two. lane_rule and
// decode_rule apply them. Included inside a level's region, after attention_rows.inl.h.

// tanh to a relative error of 4e-7, as x P(x^2) / Q(x^2), fitted on |x| <= 9, where it is 1: with exp as in simd's tanh
// the soft-cap cost 21 % of bf16 prefill, so 10 % (Zen 4, 2 threads, Dec 2026).
OPS_TRANSFORMER_INLINE F32 rational_tanh(F32 score) noexcept {
  const F32 x = max(splat(-9.0f), min(splat(9.0f), score)), z = x * x;
  F32 p = fma(splat(1.33545273e-8f), z, splat(2.06089808e-5f));
  F32 q = fma(splat(7.776502e-7f), z, splat(3.28562455e-4f));
  p = fma(p, z, splat(3.49558191e-3f));
  q = fma(q, z, splat(2.58769579e-2f));
  p = fma(p, z, splat(0.133810207f));
  q = fma(q, z, splat(0.467143357f));
  return x * fma(p, z, splat(1.0f)) / fma(q, z, splat(1.0f));
}
OPS_TRANSFORMER_INLINE F32 scaled_score(const AttentionArgs& args, F32 score) noexcept {
  if (args.rule.cap_out == 0.0f) return score * splat(args.score_scale);
  const F32 capped = rational_tanh(score * splat(args.rule.cap_in)) * splat(args.rule.cap_out);
  if (!args.rule.bias_first) return capped;
  return score == splat(kMinusInfinity) ? score : capped;  // hidden before the cap is hidden behind it
}
// A bias of -inf hides, whatever the score is; beyond what powers of two can hold it saturates.
struct AddBias {
  F32 scale;
  OPS_TRANSFORMER_INLINE F32 operator()(F32 score, F32 bias) const noexcept {
    const F32 added = min(splat(3e38f), max(splat(-3e38f), fma(bias, scale, score)));  // NaN passes through both
    return bias == splat(kMinusInfinity) ? bias : added;
  }
};
// `cell` is 0 or -inf.
struct Hide {
  OPS_TRANSFORMER_INLINE F32 operator()(F32 score, F32 cell) const noexcept { return (I32)cell != 0 ? cell : score; }
};
OPS_TRANSFORMER_INLINE F32 less_distance(F32 score, I32 distance, F32 slope) noexcept {
  return fma(abs(__builtin_convertvector(distance, F32)), -slope, score);
}

// Cells of a grid: values of a bias; 0 for visible and -inf for hidden.

OPS_TRANSFORMER_INLINE F32 load_cells(const ScoreGrid& grid, std::int64_t offset, int n) noexcept {
  if (grid.dtype != DType::boolean) return load_any(grid.data, grid.dtype, offset, n);
  typedef std::uint8_t Bytes __attribute__((vector_size(kLanes)));
  Bytes bytes{};
  const auto* p = static_cast<const std::uint8_t*>(grid.data) + offset;
  if (n == kLanes) {
    __builtin_memcpy(&bytes, p, kLanes);
  } else {
    __builtin_memcpy(&bytes, p, std::size_t(n));
  }
  const I32 hidden = (I32)(__builtin_convertvector(bytes, I32) == 0);
  return (F32)(hidden & splat_int(std::int32_t(0xff800000)));
}
// n keys from column `key` of the row at `offset` on.
OPS_TRANSFORMER_INLINE F32 load_row_cells(const ScoreGrid& grid, std::int64_t offset, std::int64_t key,
                                          int n) noexcept {
  if (grid.key_stride == 1) return load_cells(grid, offset + key, n);
  if (grid.key_stride == 0) return splat(load_cells(grid, offset, 1)[0]);
  float cells[kLanes] = {};
  for (int i = 0; i < n; ++i) cells[i] = load_cells(grid, offset + (key + i) * grid.key_stride, 1)[0];
  return load(cells);
}
// Whether the boolean row at `offset` shows one of the keys from column `key` on.
[[maybe_unused]] bool any_visible(const ScoreGrid& grid, std::int64_t offset, std::int64_t key,
                                  std::int64_t num_keys) noexcept {
  const auto* row = static_cast<const std::uint8_t*>(grid.data) + offset;
  if (grid.key_stride == 0) return row[0] != 0;
  row += key * grid.key_stride;
  std::int64_t i = 0;
  for (; grid.key_stride == 1 && i + 8 <= num_keys; i += 8) {
    std::uint64_t cells;
    __builtin_memcpy(&cells, row + i, sizeof cells);
    if (cells) return true;
  }
  for (; i < num_keys; ++i) {
    if (row[i * grid.key_stride]) return true;
  }
  return false;
}
OPS_TRANSFORMER_INLINE std::int64_t grid_offset(const ScoreGrid& grid, std::int64_t offset, RowPlace place) noexcept {
  return offset + place.query * grid.row_stride + place.head * grid.head_stride;
}
