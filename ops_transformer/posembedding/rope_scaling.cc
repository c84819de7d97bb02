// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/posembedding/rope_scaling.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "ops_transformer/base/validate.h"

namespace ops_transformer {
namespace {

constexpr long double kTwoPi = 6.283185307179586476925286766559005768L;
constexpr double kMostFactor = 0x1p20;
constexpr std::int64_t kLongestContext = std::int64_t{1} << 31;

template <class T>
void check(bool good, std::string_view name, T value, std::string_view limit) {
  if (!good) invalid("RopeTable", fmt::format("{} is {}, must be {}", name, value, limit));
}
void check_factor(std::string_view name, double factor) {
  check(factor >= 1.0 && factor <= kMostFactor, name, factor, "from 1 to 2^20");
}
void check_context(std::string_view name, std::int64_t length) {
  check(length >= 1 && length <= kLongestContext, name, length, "from 1 to 2^31");
}

std::vector<long double> frequencies(long double theta, std::int64_t rotary_dim) {
  std::vector<long double> radians;
  for (std::int64_t i = 0; i < rotary_dim / 2; ++i) {
    radians.push_back(std::pow(theta, -2.0L * static_cast<long double>(i) / static_cast<long double>(rotary_dim)));
  }
  return radians;
}

struct Scale {
  double theta;
  std::int64_t rotary_dim;

  RopeFrequencies operator()(std::monostate) const { return {frequencies(theta, rotary_dim)}; }

  RopeFrequencies operator()(const NtkScaling& ntk) const {
    check_factor("ntk.factor", ntk.factor);
    check(rotary_dim >= 4, "rotary_dim", rotary_dim, "at least 4 with NTK scaling");
    const long double exponent = static_cast<long double>(rotary_dim) / static_cast<long double>(rotary_dim - 2);
    return {frequencies(theta * std::pow(static_cast<long double>(ntk.factor), exponent), rotary_dim)};
  }

  RopeFrequencies operator()(const Llama3Scaling& llama3) const {
    check_factor("llama3.factor", llama3.factor);
    check_context("llama3.original_context_len", llama3.original_context_len);
    const double low = llama3.low_frequency_factor, high = llama3.high_frequency_factor;
    check(low > 0 && std::isfinite(low), "llama3.low_frequency_factor", low, "finite and above 0");
    check(high > low && std::isfinite(high), "llama3.high_frequency_factor", high,
          fmt::format("finite and above low_frequency_factor = {}", low));
    RopeFrequencies scaled{frequencies(theta, rotary_dim)};
    for (long double& f : scaled.radians) {
      const long double kept = llama3.share_kept(f);
      f = kept * f + (1 - kept) * f / llama3.factor;
    }
    return scaled;
  }

  RopeFrequencies operator()(const YarnScaling& yarn) const {
    check_factor("yarn.factor", yarn.factor);
    check_context("yarn.original_context_len", yarn.original_context_len);
    check(yarn.beta_slow > 0, "yarn.beta_slow", yarn.beta_slow, "above 0");
    check(yarn.beta_fast > yarn.beta_slow && std::isfinite(yarn.beta_fast), "yarn.beta_fast", yarn.beta_fast,
          fmt::format("finite and above beta_slow = {}", yarn.beta_slow));
    check(theta > 1.0, "theta", theta, "above 1 with YaRN");
    const double amplitude = yarn.attention_factor.value_or(yarn.default_attention_factor());
    check(amplitude > 0 && amplitude <= kMostFactor, "yarn.attention_factor", amplitude, "above 0 and at most 2^20");
    // The index, not whole, of the pair that turns `turns` times in the original context.
    const auto index_of = [&](double turns) {
      return double(rotary_dim) * std::log(double(yarn.original_context_len) / (turns * double(kTwoPi))) /
             (2 * std::log(theta));
    };
    const double first = std::max(std::floor(index_of(yarn.beta_fast)), 0.0);
    const double last = std::min(std::ceil(index_of(yarn.beta_slow)), double(rotary_dim - 1));
    RopeFrequencies scaled{frequencies(theta, rotary_dim), amplitude};
    for (std::size_t i = 0; i < scaled.radians.size(); ++i) {
      const double slowed = std::clamp((double(i) - first) / std::max(last - first, 1e-3), 0.0, 1.0);
      scaled.radians[i] *= (1 - slowed) + slowed / static_cast<long double>(yarn.factor);
    }
    return scaled;
  }
};

}  // namespace

long double Llama3Scaling::share_kept(long double f) const {
  const long double turns = static_cast<long double>(original_context_len) * f / kTwoPi;
  return std::clamp((turns - low_frequency_factor) / (high_frequency_factor - low_frequency_factor), 0.0L, 1.0L);
}

double YarnScaling::default_attention_factor() const { return 0.1 * std::log(factor) + 1.0; }

RopeFrequencies rope_frequencies(double theta, std::int64_t rotary_dim, const RopeScaling& scaling) {
  return std::visit(Scale{theta, rotary_dim}, scaling);
}

}  // namespace ops_transformer
