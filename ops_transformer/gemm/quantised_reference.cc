// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/gemm/quantised_reference.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace ops_transformer::reference {
namespace {

double half(const unsigned char* p) {
  const int bits = p[0] | p[1] << 8, exponent = bits >> 10 & 31, fraction = bits & 1023;
  const double magnitude = exponent == 0    ? std::ldexp(fraction, -24)
                           : exponent == 31 ? (fraction ? std::nan("") : std::numeric_limits<double>::infinity())
                                            : std::ldexp(1024 + fraction, exponent - 25);
  return bits & 0x8000 ? -magnitude : magnitude;
}

}  // namespace

std::vector<double> dequantise_row(DType dtype, const void* row, std::int64_t num_elements) {
  const auto* bytes = static_cast<const unsigned char*>(row);
  std::vector<double> out;
  for (std::int64_t i = 0; i < num_elements; ++i) {
    const std::int64_t block = i / 32, j = i % 32;
    if (dtype == DType::q8_0) {
      const unsigned char* p = bytes + block * 34;
      out.push_back(half(p) * static_cast<signed char>(p[2 + j]));
    } else {
      const unsigned char* p = bytes + block * (dtype == DType::q4_0 ? 18 : 20);
      const unsigned char* codes = p + (dtype == DType::q4_0 ? 2 : 4);
      const int code = j < 16 ? codes[j] % 16 : codes[j - 16] / 16;
      out.push_back(dtype == DType::q4_0 ? half(p) * (code - 8) : half(p) * code + half(p + 2));
    }
  }
  return out;
}

QuantisedRow quantise_row(const std::vector<float>& x) {
  QuantisedRow row;
  for (std::size_t begin = 0; begin < x.size(); begin += 32) {
    const std::size_t end = std::min(x.size(), begin + 32);
    float most = 0;
    bool finite = true;
    for (std::size_t i = begin; i < end; ++i) {
      most = std::max(most, std::fabs(x[i]));
      finite = finite && std::isfinite(x[i]);
    }
    row.scales.push_back(finite ? most / 127.0f : std::numeric_limits<float>::quiet_NaN());
    for (std::size_t i = begin; i < end; ++i) {
      // Scaled so that 127 / most stays within the range of float.
      const int up = most < 0x1p-100f ? 100 : 0;
      const float inverse = most > 0 ? 127.0f / std::ldexp(most, up) : 0.0f;
      row.codes.push_back(finite ? int(std::nearbyint(std::ldexp(x[i], up) * inverse)) : 0);
    }
  }
  return row;
}

std::vector<double> values(const QuantisedRow& row) {
  std::vector<double> out;
  for (std::size_t i = 0; i < row.codes.size(); ++i) out.push_back(double(row.scales[i / 32]) * row.codes[i]);
  return out;
}

}  // namespace ops_transformer::reference
