// SPDX-License-Identifier: Apache-2.0
// ScoreRule with queries in the lanes. Each step is a pass of its own over scores in L1: a pass costs a few cycles a
// vector, the products of a score 128 and more. Included inside a level's region, after score_rule.inl.h and
// lane_shuffle.inl.h.

inline constexpr int kBlockLanes = kTileVectors * kLanes;

struct LaneRows {
  std::int32_t position[kLanes];
  float slope[kLanes];
  std::int64_t bias[kLanes], visible[kLanes];  // offsets of the rows of the grids

  OPS_TRANSFORMER_INLINE void set(const AttentionArgs& args, const AttentionSequence& sequence, int lane,
                                  RowPlace place) noexcept {
    position[lane] = std::int32_t(place.query + sequence.first_position);
    slope[lane] = args.rule.alibi_slopes ? args.rule.alibi_slopes[place.head] * kLog2E : 0.0f;
    bias[lane] = grid_offset(args.rule.bias, sequence.bias_offset, place);
    visible[lane] = grid_offset(args.rule.visible, sequence.visible_offset, place);
  }
};

// scores [num_keys][kBlockLanes], of which one vector of lanes; cells from column `column` on.
template <class Op>
void apply_grid(const ScoreGrid& grid, const std::int64_t (&offsets)[kLanes], std::int64_t column,
                std::int64_t num_keys, float* scores, const Op& op) noexcept {
  bool same = true;
  for (int i = 1; i < kLanes; ++i) same &= offsets[i] == offsets[0];
  for (std::int64_t key = 0; key < num_keys; key += kLanes) {
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
