// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/posembedding/rope_reference.h"

#include <cmath>
#include <complex>
#include <numbers>

namespace ops_transformer::reference {

long double rope_angle(std::int64_t position, std::int64_t pair, std::int64_t rotary_dim, double theta,
                       double position_scale) {
  const long double frequency =
      std::exp(-2.0L * (long double)pair / (long double)rotary_dim * std::log((long double)theta));
  return (long double)position / (long double)position_scale * frequency;
}

long double ntk_frequency(std::int64_t pair, std::int64_t rotary_dim, double theta, double factor) {
  const long double d = (long double)rotary_dim;
  return std::pow((long double)theta * std::pow((long double)factor, d / (d - 2)), -2 * (long double)pair / d);
}

// As Meta's release writes it, by wavelengths.
long double llama3_frequency(std::int64_t pair, std::int64_t rotary_dim, double theta, double factor, double low,
                             double high, double original_context_len) {
  const long double frequency = rope_angle(1, pair, rotary_dim, theta, 1.0);
  const long double wavelength = 2 * std::numbers::pi_v<long double> / frequency;
  if (wavelength < original_context_len / high) return frequency;
  if (wavelength > original_context_len / low) return frequency / factor;
  const long double smooth = (original_context_len / wavelength - low) / (high - low);
  return (1 - smooth) * frequency / factor + smooth * frequency;
}

// The paper's section 3.4, with the correction range by whole indices of its implementations.
long double yarn_frequency(std::int64_t pair, std::int64_t rotary_dim, double theta, double factor,
                           double original_context_len, double beta_fast, double beta_slow) {
  const auto dimension = [&](double turns) {
    return double(rotary_dim) * std::log(original_context_len / (turns * 2 * std::numbers::pi)) / (2 * std::log(theta));
  };
  double low = std::floor(dimension(beta_fast)), high = std::ceil(dimension(beta_slow));
  if (low < 0) low = 0;
  if (high > double(rotary_dim - 1)) high = double(rotary_dim - 1);
  if (high == low) high += 0.001;
  double ramp = (double(pair) - low) / (high - low);
  ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
  const long double extrapolated = rope_angle(1, pair, rotary_dim, theta, 1.0);
  return extrapolated / factor * ramp + extrapolated * (1 - ramp);
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
