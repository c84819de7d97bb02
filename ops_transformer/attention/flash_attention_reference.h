// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

namespace ops_transformer::reference {

/// One row of attention in float64, with what a bound on the error needs.
struct AttentionRow {
  std::vector<double> out;
  double lse;
  double max, sum;                // the largest score, the sum of exp(score - max)
  std::vector<double> magnitude;  // sum of weight |v|
  double score_magnitude;         // the largest |scale| sum |q||k|
  std::int64_t num_keys;
};

/// Keys [first, last) in [0, kv_len) that query i sees: bottom-right aligned, i - left ... i + right.
struct VisibleKeys {
  std::int64_t first, last;
};
VisibleKeys visible_keys(std::int64_t i, std::int64_t q_len, std::int64_t kv_len, std::int64_t left,
                         std::int64_t right);

/// What becomes of a score: -inf hides key j, which is then not read. magnitude: of all that was added up.
struct RuledScore {
  double score, magnitude;
};
using Rule = std::function<RuledScore(std::int64_t j, double dot, double magnitude)>;

/// key(j, d) and value(j, d) for the keys of `seen` that `rule` doesn't hide; none: out 0, lse and max -inf, sum 0. A
/// finite sink joins the sum. rule: nothing but the scale.
AttentionRow attention_row(const std::vector<double>& q, const std::function<double(std::int64_t, std::int64_t)>& key,
                           const std::function<double(std::int64_t, std::int64_t)>& value, std::int64_t value_dim,
                           VisibleKeys seen, double scale, const Rule& rule = {},
                           double sink = -std::numeric_limits<double>::infinity());

}  // namespace ops_transformer::reference
