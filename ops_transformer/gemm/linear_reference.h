// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "ops_transformer/gemm/activation.h"

namespace ops_transformer::reference {

double activate(double x, Activation activation);

/// One row in float64: activation(x weights^T + bias) + residual, weights [num_outputs, num_inputs]; bias and residual
/// may be empty. magnitude is the sum of |x||w|, |bias| and |residual|, which bounds the error of any order of sums.
struct LinearRow {
  std::vector<double> value, magnitude;
};
LinearRow linear(const std::vector<double>& x, const std::vector<double>& weights, const std::vector<double>& bias,
                 Activation activation, const std::vector<double>& residual);

}  // namespace ops_transformer::reference
