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
                           VisibleKeys seen, double scale) {
  AttentionRow row{std::vector<double>(std::size_t(value_dim)), -std::numeric_limits<double>::infinity(),
                   std::vector<double>(std::size_t(value_dim)), 0, seen.last - seen.first};
  if (row.num_keys <= 0) return row;
  std::vector<double> score;
  double most = -std::numeric_limits<double>::infinity(), sum = 0;
  for (std::int64_t j = seen.first; j < seen.last; ++j) {
    double dot = 0, magnitude = 0;
    for (std::size_t d = 0; d < q.size(); ++d) {
      const double product = q[d] * key(j, std::int64_t(d));
      dot += product;
      magnitude += std::abs(product);
    }
    score.push_back(dot * scale);
    most = std::max(most, score.back());
    row.score_magnitude = std::max(row.score_magnitude, std::abs(scale) * magnitude);
  }
  for (double& s : score) sum += s = std::exp(s - most);
  for (std::int64_t j = seen.first; j < seen.last; ++j) {
    for (std::int64_t d = 0; d < value_dim; ++d) {
      const double product = score[std::size_t(j - seen.first)] / sum * value(j, d);
      row.out[std::size_t(d)] += product;
      row.magnitude[std::size_t(d)] += std::abs(product);
    }
  }
  row.lse = most + std::log(sum);
  return row;
}

}  // namespace ops_transformer::reference
