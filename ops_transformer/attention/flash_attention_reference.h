// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace ops_transformer::reference {

/// One row of attention in float64, with what a bound on the error needs.
struct AttentionRow {
  std::vector<double> out;
  double lse;
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

/// key(j, d) and value(j, d) for the keys of `seen`; empty: out 0, lse -inf.
AttentionRow attention_row(const std::vector<double>& q, const std::function<double(std::int64_t, std::int64_t)>& key,
                           const std::function<double(std::int64_t, std::int64_t)>& value, std::int64_t value_dim,
                           VisibleKeys seen, double scale);

}  // namespace ops_transformer::reference
