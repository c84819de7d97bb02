// SPDX-License-Identifier: Apache-2.0
// ScoreRule with the keys of one row in the lanes. Included inside a level's region, after score_rule.inl.h.

struct RowRule {
  std::int64_t bias, visible, visible_first_key;
  std::int32_t position;
  float slope;
};
OPS_TRANSFORMER_INLINE RowRule rule_of(const AttentionArgs& args, const AttentionSequence& sequence,
                                       RowPlace place) noexcept {
  return {grid_offset(args.rule.bias, sequence.bias_offset, place),
          grid_offset(args.rule.visible, sequence.visible_offset, place), sequence.visible_first_key,
          std::int32_t(place.query + sequence.first_position),
          args.rule.alibi_slopes ? args.rule.alibi_slopes[place.head] * kLog2E : 0.0f};
}

// Whether the boolean mask hides keys [first_key, first_key + num_keys) from all rows.
[[maybe_unused]] bool block_is_hidden(const AttentionArgs& args, const RowRule* rows, int num_rows,
                                      std::int64_t first_key, int num_keys) noexcept {
  for (int r = 0; r < num_rows; ++r) {
    const std::int64_t column = first_key - rows[r].visible_first_key;
    if (column < 0 || any_visible(args.rule.visible, rows[r].visible, column, num_keys)) return false;
  }
  return true;
}

// Gives whether some key may be hidden: its score is -inf.
[[maybe_unused]] bool apply_rule(const AttentionArgs& args, const RowRule& row, std::int64_t first_key, int num_keys,
                                 float* scores) noexcept {
  const ScoreRule& rule = args.rule;
  const AddBias add_bias{splat(rule.bias_scale)};
  I32 lane;
  for (int i = 0; i < kLanes; ++i) lane[i] = i;
  I32 hidden{};
  for (int key = 0; key < num_keys; key += kLanes) {
    const int n = num_keys - key < kLanes ? num_keys - key : kLanes;
    const std::int64_t at = first_key + key;
    F32 score = load(scores + key);
    const F32 bias = rule.bias.data ? load_row_cells(rule.bias, row.bias, at, n) : F32{};
    if (rule.bias.data && rule.bias_first) score = add_bias(score, bias);
    score = scaled_score(args, score);
    if (rule.bias.data && !rule.bias_first) score = add_bias(score, bias);
    if (rule.alibi_slopes) {
      score = less_distance(score, splat_int(std::int32_t(at) - row.position) + lane, splat(row.slope));
    }
    if (rule.visible.data && at + n > row.visible_first_key) {
      const std::int64_t before = row.visible_first_key > at ? row.visible_first_key - at : 0;
      F32 cells = load_row_cells(rule.visible, row.visible, at + before - row.visible_first_key, int(n - before));
      if (before > 0) {
        float shifted[2 * kLanes] = {};
        store(shifted + before, cells);
        cells = load(shifted);
      }
      score = Hide{}(score, cells);
    }
    store(scores + key, score);
    hidden |= (I32)(score == splat(kMinusInfinity));
  }
  return (rule.bias.data || rule.visible.data) && any_lane(hidden);
}
