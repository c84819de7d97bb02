// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <vector>

#include "ops_transformer/base/float16.h"

namespace ops_transformer::test {

/// A generator whose seed is printed when the test fails.
class Random {
 public:
  explicit Random(std::uint64_t seed)
      : trace_(__FILE__, __LINE__, ::testing::Message() << "seed " << seed), engine_(seed) {}

  float normal(float deviation = 1.0f) { return std::normal_distribution<float>(0.0f, deviation)(engine_); }
  float uniform(float low, float high) { return std::uniform_real_distribution<float>(low, high)(engine_); }
  std::int64_t integer(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(engine_);
  }
  std::mt19937_64& engine() { return engine_; }

 private:
  ::testing::ScopedTrace trace_;
  std::mt19937_64 engine_;
};

template <class T>
T from_float(float x) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    return to_bfloat16(x);
  } else if constexpr (std::is_same_v<T, Float16>) {
    return to_float16(x);
  } else {
    return T(x);
  }
}

/// Fills any buffer with normal values; returns nothing: the buffer holds what the kernel sees.
template <class Buffer>
void fill_normal(Buffer& buffer, Random& random, float deviation = 1.0f) {
  using T = std::remove_reference_t<decltype(buffer[0])>;
  for (std::size_t i = 0; i < buffer.size(); ++i) buffer[i] = from_float<T>(random.normal(deviation));
}

}  // namespace ops_transformer::test
