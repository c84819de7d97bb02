// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/gemm/integer_reference.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace ops_transformer::reference {

std::vector<double> rounded_to_int8(const std::vector<float>& x, std::int64_t group_len, float given) {
  std::vector<double> values;
  const std::size_t length = group_len ? std::size_t(group_len) : x.size();
  for (std::size_t begin = 0; begin < x.size(); begin += length) {
    float most = 0;
    bool finite = true;
    for (std::size_t i = begin; i < begin + length; ++i) {
      most = std::max(most, std::fabs(x[i]));
      finite = finite && std::isfinite(x[i]);
    }
    for (std::size_t i = begin; i < begin + length; ++i) {
      if (!finite) {
        values.push_back(std::numeric_limits<double>::quiet_NaN());
      } else if (given != 0) {
        values.push_back(double(given) * std::clamp(std::nearbyint(x[i] / given), -128.0f, 127.0f));
      } else {
        // In float, as what is rounded is a float product.
        values.push_back(most > 0 ? double(most / 127.0f) * std::nearbyint(x[i] * (127.0f / most)) : 0);
      }
    }
  }
  return values;
}

std::vector<std::int64_t> integer_products(const std::vector<int>& a, int a_zero, const std::vector<int>& b,
                                           int b_zero) {
  std::vector<std::int64_t> sums;
  for (std::size_t first = 0; first < b.size(); first += a.size()) {
    std::int64_t sum = 0;
    for (std::size_t i = 0; i < a.size(); ++i) sum += std::int64_t(a[i] - a_zero) * (b[first + i] - b_zero);
    sums.push_back(sum);
  }
  return sums;
}

}  // namespace ops_transformer::reference
