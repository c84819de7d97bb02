// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

namespace ops_transformer::reference {

/// One row: its values, and the size of what was added for each: (|h| + mean|h|) / deviation * |weight| + |bias|.
struct LayerNormRow {
  std::vector<double> value, magnitude;
};
LayerNormRow layer_norm(const std::vector<double>& h, const std::vector<double>& weight,
                        const std::vector<double>& bias, double eps);

}  // namespace ops_transformer::reference
