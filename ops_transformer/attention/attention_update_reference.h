// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

namespace ops_transformer::reference {

/// One row of a merge in float64; magnitude: the sum of weight |out| for each value, weights adding up to 1.
struct MergedRow {
  std::vector<double> out, magnitude;
  double lse;
};

/// outs [parts][value_dim], lses [parts]. Parts with lse -inf take no part.
MergedRow merge_row(const std::vector<std::vector<double>>& outs, const std::vector<double>& lses);

}  // namespace ops_transformer::reference
