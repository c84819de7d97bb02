// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/base/float16.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "tests/support/random.h"

namespace ops_transformer {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// The value of a 16-bit float from its definition.
double value_of(std::uint16_t bits, int mantissa_bits) {
  const int exponent_bits = 15 - mantissa_bits, bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = bits >> mantissa_bits & ((1 << exponent_bits) - 1), mantissa = bits & ((1 << mantissa_bits) - 1);
  const double sign = bits & 0x8000 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) return mantissa ? std::nan("") : sign * double(kInf);
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

template <class T>
T narrow(float x) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    return to_bfloat16(x);
  } else {
    return to_float16(x);
  }
}

template <class T>
class Float16Types : public testing::Test {
 public:
  static constexpr int kMantissaBits = std::is_same_v<T, BFloat16> ? 7 : 10;
};
using Types = testing::Types<BFloat16, Float16>;
TYPED_TEST_SUITE(Float16Types, Types);

TYPED_TEST(Float16Types, AllPatternsRoundTrip) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const TypeParam x{std::uint16_t(bits)};
    const double expected = value_of(x.bits, TestFixture::kMantissaBits);
    const float wide = to_float(x);
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(wide) && std::isnan(to_float(narrow<TypeParam>(wide)))) << bits;
      continue;
    }
    ASSERT_EQ(double(wide), expected) << bits;
    ASSERT_EQ(std::signbit(wide), (bits & 0x8000) != 0) << bits;
    ASSERT_EQ(narrow<TypeParam>(wide).bits, x.bits) << bits;
  }
}

// Between neighbours: the middle goes to the even one, one step to either side to the nearer.
TYPED_TEST(Float16Types, RoundsToNearestEven) {
  const std::uint32_t infinity = TestFixture::kMantissaBits == 7 ? 0x7f80 : 0x7c00;
  for (std::uint32_t bits = 0; bits < infinity; ++bits) {
    const double low = value_of(std::uint16_t(bits), TestFixture::kMantissaBits);
    // Past the largest value the step goes on as if the exponent did.
    const double high = bits + 1 < infinity ? value_of(std::uint16_t(bits + 1), TestFixture::kMantissaBits)
                                            : 2 * low - value_of(std::uint16_t(bits - 1), TestFixture::kMantissaBits);
    const float middle = float((low + high) / 2);
    if (double(middle) != (low + high) / 2) continue;  // below float's own subnormals
    const auto even = std::uint16_t(bits % 2 ? bits + 1 : bits);
    ASSERT_EQ(narrow<TypeParam>(middle).bits, even) << bits;
    ASSERT_EQ(narrow<TypeParam>(-middle).bits, even | 0x8000) << bits;
    ASSERT_EQ(narrow<TypeParam>(std::nextafter(middle, 0.0f)).bits, bits);
    ASSERT_EQ(narrow<TypeParam>(std::nextafter(middle, kInf)).bits, bits + 1);
  }
}

TYPED_TEST(Float16Types, ExtremesKeepTheirSign) {
  const auto infinity = std::uint16_t(TestFixture::kMantissaBits == 7 ? 0x7f80 : 0x7c00);
  EXPECT_EQ(narrow<TypeParam>(kInf).bits, infinity);
  EXPECT_EQ(narrow<TypeParam>(-kInf).bits, infinity | 0x8000);
  EXPECT_EQ(narrow<TypeParam>(std::numeric_limits<float>::max()).bits, infinity);
  EXPECT_EQ(narrow<TypeParam>(-0.0f).bits, 0x8000);
  EXPECT_EQ(narrow<TypeParam>(-1e-45f).bits, 0x8000);
  for (std::uint32_t payload : {0x7f800001u, 0x7fffffffu, 0xff800001u, 0xffffffffu}) {
    EXPECT_TRUE(std::isnan(to_float(narrow<TypeParam>(std::bit_cast<float>(payload)))));
  }
}

TEST(BFloat16, AgreesWithTheDefinitionOnRandomBits) {
  test::Random random(1);
  for (int i = 0; i < 100000; ++i) {
    const float x = std::bit_cast<float>(std::uint32_t(random.engine()()));
    if (std::isnan(x)) continue;
    const double rounded = to_float(to_bfloat16(x));
    if (std::isinf(rounded)) continue;
    const double step = std::ldexp(1.0, std::max(std::ilogb(x), -126) - 7);
    EXPECT_LE(std::abs(rounded - double(x)), step / 2);
  }
}

}  // namespace
}  // namespace ops_transformer
