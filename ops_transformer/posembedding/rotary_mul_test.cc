// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/posembedding/rotary_mul.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "ops_transformer/posembedding/rotary_mul_kernel.h"
#include "tests/support/dtype_of.h"
#include "tests/support/guarded_buffer.h"
#include "tests/support/message_of.h"
#include "tests/support/random.h"
#include "tests/support/tolerance.h"

namespace ops_transformer {
namespace {

using test::GuardedBuffer;
using test::kDType;
using test::message_of;

// rot(x) and what stands beside it, as the modes' definitions read.
void definition(RotaryMode mode, const std::vector<double>& x, std::vector<double>& y, std::vector<double>& rotated) {
  const std::size_t n = x.size();
  y = x;
  rotated.assign(n, 0.0);
  const auto turn = [&](std::size_t first, std::size_t length) {
    for (std::size_t i = 0; i < length / 2; ++i) {
      rotated[first + i] = -y[first + length / 2 + i];
      rotated[first + length / 2 + i] = y[first + i];
    }
  };
  switch (mode) {
    case RotaryMode::half:
      return turn(0, n);
    case RotaryMode::quarter:
      turn(0, n / 2);
      return turn(n / 2, n / 2);
    case RotaryMode::interleave:
      for (std::size_t i = 0; i < n; i += 2) {
        rotated[i] = -x[i + 1];
        rotated[i + 1] = x[i];
      }
      return;
    case RotaryMode::interleave_half:
      for (std::size_t i = 0; i < n / 2; ++i) {
        y[i] = x[2 * i];
        y[n / 2 + i] = x[2 * i + 1];
      }
      return turn(0, n);
  }
}

// x [2, 3, 4, head_dim] in a wider tensor; cos over the third dimension, sin over all.
template <class T, class Angle>
void check(Isa isa, RotaryMode mode, std::int64_t head_dim, std::int64_t dim, bool in_place) {
  SCOPED_TRACE(testing::Message() << isa_name(isa) << " mode " << int(mode) << " head_dim " << head_dim << " rotary "
                                  << dim << " in place " << in_place);
  test::Random random(12);
  constexpr std::int64_t kRows = 24;
  const std::int64_t stride = head_dim + 5;
  GuardedBuffer<T> x(std::size_t((kRows - 1) * stride + head_dim)), apart(std::size_t(kRows * head_dim));
  GuardedBuffer<Angle> cosines(std::size_t(4 * dim)), sines(std::size_t(kRows * dim));
  test::fill_normal(x, random);
  test::fill_normal(cosines, random);
  test::fill_normal(sines, random);
  const std::vector<T> before(x.begin(), x.end());
  const TensorView x_view(x.data(), kDType<T>, {2, 3, 4, head_dim}, {12 * stride, 4 * stride, stride, 1});
  const TensorView out = in_place ? x_view : TensorView(apart.data(), kDType<T>, {2, 3, 4, head_dim});
  Context context({.num_threads = 2, .isa = isa});
  rotary_mul(context, x_view, {cosines.data(), kDType<Angle>, {1, 1, 4, dim}},
             {sines.data(), kDType<Angle>, {2, 3, 4, dim}}, mode, out);
  for (std::int64_t r = 0; r < kRows; ++r) {
    std::vector<double> row, y, rotated;
    for (std::int64_t i = 0; i < dim; ++i) row.push_back(to_float(before[std::size_t(r * stride + i)]));
    definition(mode, row, y, rotated);
    for (std::int64_t i = 0; i < head_dim; ++i) {
      const T got = in_place ? x[std::size_t(r * stride + i)] : apart[std::size_t(r * head_dim + i)];
      if (i >= dim) {
        ASSERT_EQ(to_float(got), to_float(before[std::size_t(r * stride + i)]));
        continue;
      }
      const double a = y[std::size_t(i)] * to_float(cosines[std::size_t(r % 4 * dim + i)]),
                   b = rotated[std::size_t(i)] * to_float(sines[std::size_t(r * dim + i)]);
      ASSERT_NEAR(to_float(got), a + b, test::tolerance(2, std::abs(a) + std::abs(b), a + b, kDType<T>))
          << r << " " << i;
    }
  }
}

template <class T>
class RotaryMul : public testing::Test {};
using Types = testing::Types<float, BFloat16, Float16>;
TYPED_TEST_SUITE(RotaryMul, Types);

TYPED_TEST(RotaryMul, MatchesDefinitionAtEveryLevel) {
  for (Isa isa : supported_isas()) {
    if (!rotary_mul_rows.row(isa)) continue;
    for (RotaryMode mode :
         {RotaryMode::half, RotaryMode::interleave, RotaryMode::quarter, RotaryMode::interleave_half}) {
      for (auto [head_dim, dim] : {std::pair{64, 64}, {128, 128}, {4, 4}, {12, 12}, {20, 16}, {67, 36}, {8, 0}}) {
        check<TypeParam, TypeParam>(isa, mode, head_dim, dim, dim % 8 == 0);
        check<TypeParam, float>(isa, mode, head_dim, dim, dim % 8 != 0);
      }
    }
  }
}

TEST(RotaryMulRotated, IsTakenAsGiven) {
  Context context({.num_threads = 1});
  const float x[4] = {1, 2, 3, 4}, cosines[4] = {1, 2, 3, 4}, sines[4] = {5, 6, 7, 8}, rotated[4] = {10, 20, 30, 40};
  float out[4];
  rotary_mul(context, {x, DType::f32, {1, 1, 1, 4}}, {cosines, DType::f32, {1, 1, 1, 4}},
             {sines, DType::f32, {1, 1, 1, 4}}, RotaryMode::half, {out, DType::f32, {1, 1, 1, 4}},
             ConstTensorView(rotated, DType::f32, {1, 1, 1, 4}));
  EXPECT_EQ(std::vector<float>(out, out + 4), (std::vector<float>{51, 124, 219, 336}));
}

TEST(RotaryMulErrors, NameTheArgument) {
  Context context({.num_threads = 1});
  float x[16] = {}, cosines[16] = {}, out[16];
  const auto message = [&](const ConstTensorView& cos, const TensorView& to, RotaryMode mode) {
    return message_of([&] { rotary_mul(context, {x, DType::f32, {1, 2, 1, 8}}, cos, cos, mode, to); });
  };
  const ConstTensorView cos(cosines, DType::f32, {1, 1, 1, 8});
  const TensorView y(out, DType::f32, {1, 2, 1, 8});
  EXPECT_EQ(message(cos, y, RotaryMode::half), "");
  EXPECT_EQ(message({cosines, DType::f32, {1, 1, 1, 6}}, y, RotaryMode::quarter),
            "rotary_mul: cos has rows of 6, must be a multiple of 4 and at most head_dim = 8");
  EXPECT_NE(message({cosines, DType::f32, {1, 1, 1, 10}}, y, RotaryMode::half).find("at most head_dim = 8"),
            std::string::npos);
  EXPECT_NE(message({cosines, DType::f32, {1, 3, 1, 4}}, y, RotaryMode::half).find("cos must be [1, 2, 1, 4]"),
            std::string::npos);
  EXPECT_NE(message({cosines, DType::bf16, {1, 1, 1, 8}}, y, RotaryMode::half).find("cos must be f32"),
            std::string::npos);
  EXPECT_NE(message(cos, {cosines, DType::f32, {1, 2, 1, 8}}, RotaryMode::half).find("out must not overlap cos"),
            std::string::npos);
  EXPECT_NE(message(cos, y, static_cast<RotaryMode>(4)).find("mode is 4"), std::string::npos);
}

}  // namespace
}  // namespace ops_transformer
