// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/norm/layer_norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "ops_transformer/norm/layer_norm_reference.h"
#include "ops_transformer/norm/norm_kernel.h"
#include "ops_transformer/norm/rms_norm.h"
#include "ops_transformer/norm/rms_norm_reference.h"
#include "ops_transformer/tuning/device_spec.h"
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

// Rows around `offset`; weight and bias in the dtype of x or f32.
template <class T, class Weight>
void check(Isa isa, std::int64_t hidden, float offset, bool bias, bool residual) {
  SCOPED_TRACE(testing::Message() << isa_name(isa) << " hidden " << hidden << " offset " << offset << " bias " << bias
                                  << " residual " << residual);
  Context context({.num_threads = 2, .isa = isa});
  test::Random random(17);
  const std::int64_t rows = 5, stride = hidden + 3;
  GuardedBuffer<T> x(std::size_t((rows - 1) * stride + hidden)), added(std::size_t(rows * hidden)),
      sum(std::size_t(rows * hidden)), out(std::size_t(rows * hidden));
  GuardedBuffer<Weight> weight{std::size_t(hidden)}, shift{std::size_t(hidden)};
  test::fill_normal(x, random);
  test::fill_normal(added, random);
  test::fill_normal(weight, random);
  test::fill_normal(shift, random);
  for (T& v : added) {
    if constexpr (std::is_same_v<T, float>) v += offset;
  }
  LayerNormOptions options{.eps = 1e-6f};
  if (bias) options.bias = ConstTensorView(shift.data(), kDType<Weight>, {hidden});
  if (residual) {
    options.residual = ConstTensorView(added.data(), kDType<T>, {rows, hidden});
    options.residual_out = TensorView(sum.data(), kDType<T>, {rows, hidden});
  }
  layer_norm(context, {x.data(), kDType<T>, {rows, hidden}, {stride, 1}}, {weight.data(), kDType<Weight>, {hidden}},
             {out.data(), kDType<T>, {rows, hidden}}, options);
  for (std::int64_t r = 0; r < rows; ++r) {
    std::vector<double> h, w, b;
    for (std::int64_t i = 0; i < hidden; ++i) {
      const auto at = std::size_t(r * hidden + i);
      h.push_back(double(to_float(x[std::size_t(r * stride + i)])));
      if (residual) {
        h.back() += to_float(added[at]);
        const double bound = test::tolerance(1, std::abs(h.back()), h.back(), kDType<T>);
        ASSERT_NEAR(to_float(sum[at]), h.back(), bound);
        // The norm is of the f32 sum, whose own rounding a small deviation would magnify.
        h.back() = double(to_float(x[std::size_t(r * stride + i)]) + to_float(added[at]));
      }
      w.push_back(to_float(weight[std::size_t(i)]));
      b.push_back(bias ? to_float(shift[std::size_t(i)]) : 0.0);
    }
    const auto expected = reference::layer_norm(h, w, b, 1e-6);
    for (std::size_t i = 0; i < std::size_t(hidden); ++i) {
      ASSERT_NEAR(to_float(out[std::size_t(r * hidden) + i]), expected.value[i],
                  test::tolerance(double(hidden), expected.magnitude[i], expected.value[i], kDType<T>))
          << "row " << r << " column " << i;
    }
  }
}

template <class T>
class LayerNorm : public testing::Test {};
using Types = testing::Types<float, BFloat16, Float16>;
TYPED_TEST_SUITE(LayerNorm, Types);

TYPED_TEST(LayerNorm, MatchesReferenceAtEveryLevel) {
  for (Isa isa : supported_isas()) {
    if (!layer_norm_rows.row(isa)) continue;
    for (std::int64_t hidden : {1, 2, 7, 16, 33, 64, 576, 1025}) {
      for (bool residual : {false, true}) {
        check<TypeParam, float>(isa, hidden, 0.0f, true, residual);
        check<TypeParam, TypeParam>(isa, hidden, 0.0f, residual, residual);
      }
    }
    for (float offset : {100.0f, -1e6f}) check<TypeParam, float>(isa, 577, offset, true, true);
  }
}

std::vector<float> normalise(Isa isa, const std::vector<float>& x, float eps) {
  std::vector<float> weight(x.size(), 1.0f), out(x.size());
  const auto n = std::int64_t(x.size());
  Context context({.num_threads = 1, .isa = isa});
  layer_norm(context, {x.data(), DType::f32, {1, n}}, {weight.data(), DType::f32, {n}},
             {out.data(), DType::f32, {1, n}}, {.eps = eps});
  return out;
}

// Large squares, and rows of any size, with a first element far from the others, down to subnormal ones.
TEST(LayerNormValues, RowsOfAnySizeAreNormalised) {
  for (Isa isa : supported_isas()) {
    if (!layer_norm_rows.row(isa)) continue;
    for (float size : {1e30f, 3e38f}) {
      const auto y = normalise(isa, {size, -size}, 1e-6f);
      EXPECT_NEAR(y[0], 1.0, 1e-6);
      EXPECT_NEAR(y[1], -1.0, 1e-6);
    }
    for (double size : {1e-41, 1e-30, 1e-20, 1e-15, 1.0, 1e15, 1e19, 1e30, 5e36}) {
      for (double eps : {0.0, 1e-38, 1e-6, 1.0}) {
        for (std::size_t n : {3u, 19u, 80u}) {
          std::vector<float> x;
          for (std::size_t i = 0; i < n; ++i) x.push_back(float(size * (i == 0 ? 50.0 : double(i % 5) - 1.7)));
          const auto y = normalise(isa, x, float(eps));
          const auto expected = reference::layer_norm({x.begin(), x.end()}, std::vector<double>(n, 1.0),
                                                      std::vector<double>(n, 0.0), float(eps));
          for (std::size_t i = 0; i < n; ++i) {
            EXPECT_NEAR(y[i], expected.value[i],
                        test::tolerance(double(n), expected.magnitude[i], expected.value[i], DType::f32))
                << isa_name(isa) << " size " << size << " eps " << eps << " n " << n << " at " << i;
          }
        }
      }
    }
  }
}

TEST(LayerNormValues, EqualElementsGiveZeros) {
  for (Isa isa : supported_isas()) {
    if (!layer_norm_rows.row(isa)) continue;
    for (std::size_t n : {1u, 3u, 16u, 100u}) {
      for (float value : {0.1f, 1e-20f, 3e38f, 0.0f, -7e4f}) {
        EXPECT_EQ(normalise(isa, std::vector<float>(n, value), 0.0f), std::vector<float>(n, 0.0f))
            << isa_name(isa) << " " << n << " " << value;
      }
    }
  }
}

TEST(LayerNormValues, NanAndInfinityStayInTheirRow) {
  const float bad[] = {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()};
  for (float v : bad) {
    for (float y : normalise(supported_isas().back(), {1.0f, v, 2.0f}, 1e-6f)) EXPECT_TRUE(std::isnan(y));
  }
}

// What lies behind a row is never in its maximum, and the scale is exactly max|y| / 127 of the f32
// row.
TEST(NormQuantise, CodesAndScales) {
  for (Isa isa : supported_isas()) {
    if (!rms_norm_rows.row(isa)) continue;
    SCOPED_TRACE(isa_name(isa));
    Context context({.num_threads = 2, .isa = isa});
    for (std::int64_t hidden : {1, 7, 16, 33, 70, 576}) {
      const std::int64_t rows = 6, stride = hidden + 2;
      test::Random random(5);
      std::vector<float> x(std::size_t(rows * stride), 1e30f), plain(std::size_t(rows * hidden));
      GuardedBuffer<float> weight{std::size_t(hidden)}, scales{std::size_t(rows)};
      GuardedBuffer<std::int8_t> codes{std::size_t(rows * hidden)};
      test::fill_normal(weight, random);
      for (std::int64_t r = 0; r < rows; ++r) {
        for (std::int64_t i = 0; i < hidden; ++i) {
          x[std::size_t(r * stride + i)] = r == 1 ? 0.0f : random.normal() * (r == 2 ? 1e-37f : 1.0f);
        }
      }
      x[std::size_t(3 * stride)] = std::numeric_limits<float>::quiet_NaN();
      const ConstTensorView input(x.data(), DType::f32, {rows, hidden}, {stride, 1}),
          gains(weight.data(), DType::f32, {hidden});
      const TensorView floats(plain.data(), DType::f32, {rows, hidden}), out(codes.data(), DType::s8, {rows, hidden}),
          scale_view(scales.data(), DType::f32, {rows});
      for (bool layer : {false, true}) {
        if (layer) {
          layer_norm(context, input, gains, floats, {.eps = 1.0f});
          layer_norm(context, input, gains, out, {.eps = 1.0f, .scales = scale_view});
        } else {
          rms_norm(context, input, gains, floats, {.eps = 1.0f});
          rms_norm(context, input, gains, out, {.eps = 1.0f, .scales = scale_view});
        }
        for (std::int64_t r = 0; r < rows; ++r) {
          const float* row = plain.data() + r * hidden;
          float largest = 0;
          for (std::int64_t i = 0; i < hidden; ++i) largest = std::max(largest, std::abs(row[i]));
          if (r == 3) {
            EXPECT_TRUE(std::isnan(scales[std::size_t(r)]));
            continue;
          }
          ASSERT_EQ(scales[std::size_t(r)], largest / 127.0f) << hidden << " row " << r;
          for (std::int64_t i = 0; i < hidden; ++i) {
            const double exact = largest > 0 ? double(row[i]) * 127 / double(largest) : 0.0;
            ASSERT_NEAR(codes[std::size_t(r * hidden + i)], exact, 0.5 + 1e-4) << hidden << " row " << r;
          }
        }
      }
    }
  }
}

TEST(LayerNormErrors, NameTheArgument) {
  Context context({.num_threads = 1});
  float x[8] = {}, w[4] = {}, out[8], scales[4] = {};
  std::int8_t codes[8];
  const ConstTensorView input(x, DType::f32, {2, 4}), weight(w, DType::f32, {4});
  const TensorView y(out, DType::f32, {2, 4}), c(codes, DType::s8, {2, 4});
  const auto message = [&](const TensorView& to, const LayerNormOptions& options) {
    return message_of([&] { layer_norm(context, input, weight, to, options); });
  };
  EXPECT_EQ(message(y, {}), "");
  EXPECT_EQ(message(c, {.scales = TensorView(scales, DType::f32, {2})}), "");
  EXPECT_EQ(message(y, {.bias = ConstTensorView(w, DType::f32, {3})}),
            "layer_norm: bias must be [4] (-1: any), got [3] f32");
  EXPECT_NE(message(y, {.bias = ConstTensorView(w, DType::bf16, {4})}).find("bias must be f32"), std::string::npos);
  EXPECT_NE(message(c, {}).find("out must be f32"), std::string::npos);
  EXPECT_NE(message(y, {.scales = TensorView(scales, DType::f32, {2})}).find("out must be s8"), std::string::npos);
  EXPECT_NE(message(c, {.scales = TensorView(scales, DType::f32, {3})}).find("scales must be [2]"), std::string::npos);
  EXPECT_NE(message(c, {.scales = TensorView(x, DType::f32, {2})}).find("scales must not overlap x"),
            std::string::npos);
  EXPECT_EQ(message(y, {.eps = 2.0f}), "layer_norm: eps is 2, must be from 0 to 1");
  EXPECT_NE(message(TensorView(w, DType::f32, {2, 4}, {0, 1}), {}), "");
}

}  // namespace
}  // namespace ops_transformer
