// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/gemm/linear_reference.h"

#include <cmath>
#include <numbers>

namespace ops_transformer::reference {

double activate(double x, Activation activation) {
  switch (activation) {
    case Activation::none:
      return x;
    case Activation::relu:
      return x < 0 ? 0 : x;
    case Activation::silu:
      return x / (1 + std::exp(-x));
    case Activation::gelu_tanh:
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
    case Activation::gelu_erf:
      return 0.5 * x * std::erfc(-x / std::numbers::sqrt2);
    case Activation::gelu_fast:
      return x / (1 + std::exp(-double(1.702f) * x));
  }
  return x;
}

LinearRow linear(const std::vector<double>& x, const std::vector<double>& weights, const std::vector<double>& bias,
                 Activation activation, const std::vector<double>& residual) {
  LinearRow row;
  const std::size_t num_inputs = x.size();
  const std::size_t num_outputs = num_inputs ? weights.size() / num_inputs : bias.size();
  for (std::size_t j = 0; j < num_outputs; ++j) {
    double sum = bias.empty() ? 0 : bias[j], magnitude = std::abs(sum);
    for (std::size_t i = 0; i < num_inputs; ++i) {
      sum += x[i] * weights[j * num_inputs + i];
      magnitude += std::abs(x[i] * weights[j * num_inputs + i]);
    }
    sum = activate(sum, activation);
    if (!residual.empty()) {
      sum += residual[j];
      magnitude += std::abs(residual[j]);
    }
    row.value.push_back(sum);
    row.magnitude.push_back(magnitude);
  }
  return row;
}

}  // namespace ops_transformer::reference
