// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "ops_transformer/base/context.h"
#include "ops_transformer/base/float16.h"
#include "ops_transformer/simd/simd_test_kernel.h"
#include "tests/support/guarded_buffer.h"
#if defined(__x86_64__)
  #include <immintrin.h>
#endif

namespace ops_transformer {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<Isa> levels() {
  std::vector<Isa> found;
  for (Isa isa : supported_isas()) {
    if (simd_map.row(isa)) found.push_back(isa);
  }
  return found;
}

class Simd : public testing::TestWithParam<Isa> {
 protected:
  std::vector<float> map(SimdFunction function, const std::vector<float>& x) const {
    std::vector<float> y(x.size(), kNan);
    simd_map.row(GetParam())(function, x.data(), y.data(), x.size());
    return y;
  }
  float map(SimdFunction function, float x) const { return map(function, std::vector{x})[0]; }
};
INSTANTIATE_TEST_SUITE_P(Levels, Simd, testing::ValuesIn(levels()),
                         [](const auto& level) { return std::string(isa_name(level.param)); });

// Every 4001st bit pattern, both signs, without NaN: all magnitudes alike.
std::vector<float> all_magnitudes() {
  std::vector<float> x;
  for (std::uint64_t bits = 0; bits < 0x7f800000u; bits += 4001) {
    x.push_back(std::bit_cast<float>(std::uint32_t(bits)));
    x.push_back(-x.back());
  }
  return x;
}

// The largest relative error where the result is normal, and in units of the least subnormal elsewhere: there a
// relative error e of the largest subnormal, and the rounding, come to 2^23 e + 1/2 units.
constexpr double subnormal_bound(double relative) { return 0x1p23 * relative + 0.5; }
struct Worst {
  double relative = 0, subnormal_units = 0;
};
Worst compare(const std::vector<float>& x, const std::vector<float>& y, double reference(double)) {
  Worst worst;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double expected = reference(double(x[i]));
    if (std::abs(expected) > double(std::numeric_limits<float>::max())) {
      // The largest floats may come out as infinity where the error crosses it.
      EXPECT_TRUE(std::isinf(y[i]) || expected < 3.4028237e38) << x[i];
      continue;
    }
    if (std::isinf(y[i])) {
      EXPECT_GT(std::abs(expected), 3.4028230e38) << x[i];
      continue;
    }
    const double error = std::abs(double(y[i]) - expected);
    if (std::abs(expected) >= 0x1p-126) {
      worst.relative = std::max(worst.relative, error / std::abs(expected));
    } else {
      worst.subnormal_units = std::max(worst.subnormal_units, error / 0x1p-149);
    }
  }
  testing::Test::RecordProperty("relative", fmt::format("{:.3g}", worst.relative));
  testing::Test::RecordProperty("subnormal_units", fmt::format("{:.3g}", worst.subnormal_units));
  return worst;
}

TEST_P(Simd, Exp2) {
  const auto x = all_magnitudes();
  const Worst worst = compare(x, map(SimdFunction::exp2, x), [](double v) { return std::exp2(v); });
  EXPECT_LE(worst.relative, 2e-7);
  EXPECT_LE(worst.subnormal_units, subnormal_bound(2e-7));
  for (int n = -149; n < 128; ++n) EXPECT_EQ(map(SimdFunction::exp2, float(n)), std::ldexp(1.0f, n)) << n;
  EXPECT_EQ(map(SimdFunction::exp2, 128.0f), kInf);
  EXPECT_EQ(map(SimdFunction::exp2, -151.0f), 0.0f);
  EXPECT_EQ(map(SimdFunction::exp2, kInf), kInf);
  EXPECT_EQ(map(SimdFunction::exp2, -kInf), 0.0f);
  EXPECT_TRUE(std::isnan(map(SimdFunction::exp2, kNan)));
}

TEST_P(Simd, Exp) {
  const auto x = all_magnitudes();
  const Worst worst = compare(x, map(SimdFunction::exp, x), [](double v) { return std::exp(v); });
  EXPECT_LE(worst.relative, 1e-7);
  EXPECT_LE(worst.subnormal_units, subnormal_bound(1e-7));
  EXPECT_EQ(map(SimdFunction::exp, 0.0f), 1.0f);
  EXPECT_EQ(map(SimdFunction::exp, -0.0f), 1.0f);
  EXPECT_EQ(map(SimdFunction::exp, 89.0f), kInf);
  EXPECT_EQ(map(SimdFunction::exp, -104.5f), 0.0f);
  EXPECT_EQ(map(SimdFunction::exp, kInf), kInf);
  EXPECT_EQ(map(SimdFunction::exp, -kInf), 0.0f);
  EXPECT_TRUE(std::isnan(map(SimdFunction::exp, kNan)));
}

TEST_P(Simd, Tanh) {
  const auto x = all_magnitudes();
  const Worst worst = compare(x, map(SimdFunction::tanh, x), [](double v) { return std::tanh(v); });
  EXPECT_LE(worst.relative, 2e-7);
  EXPECT_LE(worst.subnormal_units, subnormal_bound(2e-7));
  EXPECT_EQ(map(SimdFunction::tanh, kInf), 1.0f);
  EXPECT_EQ(map(SimdFunction::tanh, -kInf), -1.0f);
  EXPECT_TRUE(std::signbit(map(SimdFunction::tanh, -0.0f)));
  EXPECT_TRUE(std::isnan(map(SimdFunction::tanh, kNan)));
}

// Ties, subnormals and NaN with every payload included: the bits are those of base/float16.h, which its own test checks
// against the definition.
TEST_P(Simd, NarrowingRoundsToNearestEven) {
  std::vector<float> x;
  for (std::uint32_t high = 0; high < 0x10000; ++high) {
    for (std::uint32_t low :
         {0x0000u, 0x0001u, 0x0fffu, 0x1000u, 0x1001u, 0x3000u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      x.push_back(std::bit_cast<float>(high << 16 | low));
    }
  }
  const auto bf16 = map(SimdFunction::through_bf16, x), f16 = map(SimdFunction::through_f16, x);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const auto bits = std::bit_cast<std::uint32_t>(x[i]);
    const float as_bf16 = to_float(to_bfloat16(x[i])), as_f16 = to_float(to_float16(x[i]));
    if (std::isnan(x[i])) {
      ASSERT_TRUE(std::isnan(bf16[i]) && std::isnan(f16[i])) << std::hex << bits;
      continue;
    }
    ASSERT_EQ(std::bit_cast<std::uint32_t>(bf16[i]), std::bit_cast<std::uint32_t>(as_bf16)) << std::hex << bits;
    ASSERT_EQ(std::bit_cast<std::uint32_t>(f16[i]), std::bit_cast<std::uint32_t>(as_f16)) << std::hex << bits;
  }
}

TEST_P(Simd, TailsReadAndWriteNothingElse) {
  for (std::size_t n = 0; n < 40; ++n) {
    test::GuardedBuffer<float> x(n), y(n);
    for (std::size_t i = 0; i < n; ++i) x[i] = float(i) - 7.0f;
    for (SimdFunction function : {SimdFunction::through_bf16, SimdFunction::through_f16}) {
      simd_map.row(GetParam())(function, x.data(), y.data(), n);
      for (std::size_t i = 0; i < n; ++i) EXPECT_EQ(y[i], x[i]);
    }
  }
}

TEST_P(Simd, ReductionsSeeEveryLane) {
  float x[64];
  for (int i = 0; i < 64; ++i) x[i] = float(i * 7 % 64);
  float sum = kNan, largest = kNan;
  const int lanes = simd_reduce.row(GetParam())(x, sum, largest);
  EXPECT_EQ(sum, std::accumulate(x, x + lanes, 0.0f));
  EXPECT_EQ(largest, *std::max_element(x, x + lanes));
  for (int i = 0; i < lanes; ++i) {
    float one[64] = {};
    one[i] = 2.0f;
    simd_reduce.row(GetParam())(one, sum, largest);
    EXPECT_EQ(sum, 2.0f);
    EXPECT_EQ(largest, 2.0f);
  }
}

TEST_P(Simd, InterleavingIsUndone) {
  float x[32], even[16], odd[16], again[32];
  std::iota(x, x + 32, 0.0f);
  const int lanes = simd_interleave.row(GetParam())(x, even, odd, again);
  for (int i = 0; i < lanes; ++i) {
    EXPECT_EQ(even[i], x[2 * i]);
    EXPECT_EQ(odd[i], x[2 * i + 1]);
  }
  EXPECT_TRUE(std::equal(x, x + 2 * lanes, again));
}

// Nothing here turns on flushing of subnormals, for the caller or for workers.
TEST_P(Simd, SubnormalsSurviveAndTheControlWordIsUntouched) {
#if defined(__x86_64__)
  constexpr unsigned kControlBits = 0xffc0;  // rounding, masks, flush-to-zero, denormals-are-zero
  const unsigned before = _mm_getcsr() & kControlBits;
  std::vector<unsigned> words(64);
  Context context({.num_threads = 4, .isa = GetParam()});
  CallScope call(context);
  call.parallel_for(words.size(), [&](std::size_t item, int) {
    for (SimdFunction f :
         {SimdFunction::exp, SimdFunction::tanh, SimdFunction::through_bf16, SimdFunction::through_f16}) {
      map(f, 1e-40f);
    }
    words[item] = _mm_getcsr() & kControlBits;
  });
  EXPECT_EQ(_mm_getcsr() & kControlBits, before);
  for (unsigned word : words) EXPECT_EQ(word, before);
#endif
  volatile float tiny = 1e-40f;
  EXPECT_EQ(tiny * 1.0f, 1e-40f);
  EXPECT_NEAR(map(SimdFunction::through_bf16, 1e-40f), 1e-40, 0x1p-134);
}

}  // namespace
}  // namespace ops_transformer
