// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/attention/flash_attention_reference.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace ops_transformer::reference {

VisibleKeys visible_keys(std::int64_t i, std::int64_t q_len, std::int64_t kv_len, std::int64_t left,
                         std::int64_t right) {
  const std::int64_t far = q_len + kv_len + 1, place = i + kv_len - q_len;
  const std::int64_t first = std::max<std::int64_t>(0, place - std::min(left, far));
  const std::int64_t last = std::min(kv_len, place + std::min(right, far) + 1);
  return first < last ? VisibleKeys{first, last} : VisibleKeys{0, 0};
}

AttentionRow attention_row(const std::vector<double>& q, const std::function<double(std::int64_t, std::int64_t)>& key,
                           const std::function<double(std::int64_t, std::int64_t)>& value, std::int64_t value_dim,
                           VisibleKeys seen, double scale, const Rule& rule, double sink) {
  constexpr double kHidden = -std::numeric_limits<double>::infinity();
  AttentionRow row{std::vector<double>(std::size_t(value_dim)), kHidden, sink, 0,
                   std::vector<double>(std::size_t(value_dim)), 0,       0};
  std::vector<std::pair<std::int64_t, double>> scores;
  for (std::int64_t j = seen.first; j < seen.last; ++j) {
    if (rule && rule(j, 0, 0).score == kHidden) continue;
    double dot = 0, magnitude = 0;
    for (std::size_t d = 0; d < q.size(); ++d) {
      const double product = q[d] * key(j, std::int64_t(d));
      dot += product;
      magnitude += std::abs(product);
    }
    const RuledScore ruled = rule ? rule(j, dot, magnitude) : RuledScore{dot * scale, std::abs(scale) * magnitude};
    scores.push_back({j, ruled.score});
    row.max = std::max(row.max, ruled.score);
    row.score_magnitude = std::max(row.score_magnitude, ruled.magnitude);
  }
  row.num_keys = std::int64_t(scores.size());
  if (row.max == kHidden) return row;
  for (auto& [j, s] : scores) row.sum += s = std::exp(s - row.max);
  if (sink != kHidden) row.sum += std::exp(sink - row.max);
  for (const auto& [j, weight] : scores) {
    for (std::int64_t d = 0; d < value_dim; ++d) {
      const double product = weight / row.sum * value(j, d);
      row.out[std::size_t(d)] += product;
      row.magnitude[std::size_t(d)] += std::abs(product);
    }
  }
  row.lse = row.max + std::log(row.sum);
  return row;
}

}  // namespace ops_transformer::reference
