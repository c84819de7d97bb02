// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

namespace ops_transformer::reference {

/// One row in float64: h / sqrt(mean(h^2) + eps) * weight.
std::vector<double> rms_norm(const std::vector<double>& h, const std::vector<double>& weight, double eps);

}  // namespace ops_transformer::reference
