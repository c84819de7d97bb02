// SPDX-License-Identifier: Apache-2.0
// The steps of ScoreRule, one vector at a time: scores come as plain products and leave in powers of two. lane_rule and
// decode_rule apply them. Included inside a level's region, after attention_rows.inl.h.

OPS_TRANSFORMER_INLINE F32 scaled_score(const AttentionArgs& args, F32 score) noexcept {
  if (args.rule.cap_out == 0.0f) return score * splat(args.score_scale);
  // Hidden before the scale is still hidden behind it.
  const F32 capped = tanh(score * splat(args.rule.cap_in)) * splat(args.rule.cap_out);
  return score == splat(kMinusInfinity) ? score : capped;
}
// A bias of -inf hides, whatever the score is; beyond what powers of two can hold it saturates.
struct AddBias {
  F32 scale;
  OPS_TRANSFORMER_INLINE F32 operator()(F32 score, F32 bias) const noexcept {
    const F32 added = score + max(splat(-3e38f), min(splat(3e38f), bias * scale));
    const F32 kept = bias == bias ? added : bias;
    return bias == splat(kMinusInfinity) ? bias : kept;
  }
};
// `cell` is 0 or -inf.
struct Hide {
  OPS_TRANSFORMER_INLINE F32 operator()(F32 score, F32 cell) const noexcept {
    return (F32)((I32)cell != 0 ? (I32)cell : (I32)score);
  }
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
OPS_TRANSFORMER_INLINE std::int64_t grid_offset(const ScoreGrid& grid, std::int64_t offset, RowPlace place) noexcept {
  return offset + place.query * grid.row_stride + place.head * grid.head_stride;
}
