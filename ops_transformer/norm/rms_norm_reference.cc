// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/norm/rms_norm_reference.h"

#include <cmath>

namespace ops_transformer::reference {

std::vector<double> rms_norm(const std::vector<double>& h, const std::vector<double>& weight, double eps) {
  double squares = 0;
  for (double v : h) squares += v * v;
  std::vector<double> out(h.size());
  for (std::size_t i = 0; i < h.size(); ++i) out[i] = h[i] / std::sqrt(squares / double(h.size()) + eps) * weight[i];
  return out;
}

}  // namespace ops_transformer::reference
