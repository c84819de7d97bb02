// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/norm/layer_norm_reference.h"

#include <cmath>

namespace ops_transformer::reference {

LayerNormRow layer_norm(const std::vector<double>& h, const std::vector<double>& weight,
                        const std::vector<double>& bias, double eps) {
  const auto n = (long double)h.size();
  long double mean = 0, size = 0, variance = 0;
  for (double v : h) mean += v / n, size += std::abs(v) / n;
  for (double v : h) variance += (v - mean) * (v - mean) / n;
  const long double total = variance + eps, deviation = total > 0 ? std::sqrt(total) : 1;
  LayerNormRow row;
  for (std::size_t i = 0; i < h.size(); ++i) {
    row.value.push_back(double((h[i] - mean) / deviation * weight[i] + bias[i]));
    row.magnitude.push_back(double((std::abs(h[i]) + size) / deviation * std::abs(weight[i]) + std::abs(bias[i])));
  }
  return row;
}

}  // namespace ops_transformer::reference
