// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/posembedding/rope_reference.h"

#include <cmath>
#include <complex>

namespace ops_transformer::reference {

long double rope_angle(std::int64_t position, std::int64_t pair, std::int64_t rotary_dim, double theta,
                       double position_scale) {
  const long double frequency =
      std::exp(-2.0L * (long double)pair / (long double)rotary_dim * std::log((long double)theta));
  return (long double)position / (long double)position_scale * frequency;
}

std::vector<double> rotary_embedding(const std::vector<double>& x, std::int64_t position, std::int64_t rotary_dim,
                                     double theta, double position_scale, bool interleaved) {
  std::vector<double> out = x;
  for (std::int64_t i = 0; i < rotary_dim / 2; ++i) {
    const long double angle = rope_angle(position, i, rotary_dim, theta, position_scale);
    const auto a = std::size_t(interleaved ? 2 * i : i), b = std::size_t(interleaved ? 2 * i + 1 : i + rotary_dim / 2);
    const auto turned = std::complex<long double>(x[a], x[b]) * std::polar(1.0L, angle);
    out[a] = double(turned.real());
    out[b] = double(turned.imag());
  }
  return out;
}

}  // namespace ops_transformer::reference
