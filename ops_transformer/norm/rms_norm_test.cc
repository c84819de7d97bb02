// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/norm/rms_norm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops_transformer/norm/norm_kernel.h"
#include "ops_transformer/norm/rms_norm_reference.h"
#include "ops_transformer/profiler/profiler.h"
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

template <class T>
class RmsNorm : public testing::Test {};
using Types = testing::Types<float, BFloat16, Float16>;
TYPED_TEST_SUITE(RmsNorm, Types);

TYPED_TEST(RmsNorm, MatchesReferenceAtEveryLevel) {
  using T = TypeParam;
  for (Isa isa : supported_isas()) {
    if (!rms_norm_rows.row(isa)) continue;
    Context context({.num_threads = 2, .isa = isa});
    for (std::int64_t hidden : {1, 7, 16, 33, 64, 576, 1025}) {
      SCOPED_TRACE(std::string(isa_name(isa)) + " hidden " + std::to_string(hidden));
      test::Random random(17);
      const std::int64_t rows = 5, stride = hidden + 3;
      GuardedBuffer<T> x(std::size_t((rows - 1) * stride + hidden)), residual(std::size_t(rows * hidden)),
          sum(std::size_t(rows * hidden)), out(std::size_t(rows * hidden));
      GuardedBuffer<float> weight{std::size_t(hidden)};
      test::fill_normal(x, random);
      test::fill_normal(residual, random);
      test::fill_normal(weight, random);
      rms_norm(context, {x.data(), kDType<T>, {rows, hidden}, {stride, 1}}, {weight.data(), DType::f32, {hidden}},
               {out.data(), kDType<T>, {rows, hidden}},
               {.eps = 1e-6f,
                .residual = ConstTensorView(residual.data(), kDType<T>, {rows, hidden}),
                .residual_out = TensorView(sum.data(), kDType<T>, {rows, hidden})});
      for (std::int64_t r = 0; r < rows; ++r) {
        std::vector<double> h, w;
        for (std::int64_t i = 0; i < hidden; ++i) {
          h.push_back(double(to_float(x[std::size_t(r * stride + i)])) +
                      to_float(residual[std::size_t(r * hidden + i)]));
          w.push_back(weight[std::size_t(i)]);
          const double bound = test::tolerance(1, std::abs(h.back()), h.back(), kDType<T>);
          EXPECT_NEAR(to_float(sum[std::size_t(r * hidden + i)]), h.back(), bound);
        }
        const auto expected = reference::rms_norm(h, w, 1e-6);
        for (std::int64_t i = 0; i < hidden; ++i) {
          const double e = expected[std::size_t(i)];
          EXPECT_NEAR(to_float(out[std::size_t(r * hidden + i)]), e,
                      test::tolerance(double(hidden), std::abs(e), e, kDType<T>));
        }
      }
    }
  }
}

// y += norm(x), in place; and out of place into f32.
TYPED_TEST(RmsNorm, AddsToTheResult) {
  using T = TypeParam;
  const std::int64_t rows = 4, hidden = 45, stride = 50;
  for (Isa isa : supported_isas()) {
    if (!rms_norm_rows.row(isa)) continue;
    SCOPED_TRACE(isa_name(isa));
    Context context({.num_threads = 2, .isa = isa});
    test::Random random(23);
    GuardedBuffer<T> x(std::size_t(rows * hidden)), y(std::size_t((rows - 1) * stride + hidden));
    GuardedBuffer<float> weight{std::size_t(hidden)}, base(std::size_t(rows * hidden)), out(base.size());
    test::fill_normal(x, random);
    test::fill_normal(y, random);
    test::fill_normal(weight, random);
    test::fill_normal(base, random);
    const std::vector<T> before(y.begin(), y.end());
    const ConstTensorView x_view(x.data(), kDType<T>, {rows, hidden}), w_view(weight.data(), DType::f32, {hidden});
    const TensorView y_view(y.data(), kDType<T>, {rows, hidden}, {stride, 1});
    rms_norm(context, x_view, w_view, y_view, {.eps = 1e-6f, .added = y_view});
    rms_norm(context, x_view, w_view, {out.data(), DType::f32, {rows, hidden}},
             {.eps = 1e-6f, .added = ConstTensorView(base.data(), DType::f32, {rows, hidden})});
    for (std::int64_t r = 0; r < rows; ++r) {
      std::vector<double> h, w(weight.begin(), weight.end());
      for (std::int64_t i = 0; i < hidden; ++i) h.push_back(to_float(x[std::size_t(r * hidden + i)]));
      const auto normal = reference::rms_norm(h, w, 1e-6);
      for (std::int64_t i = 0; i < hidden; ++i) {
        const double n = normal[std::size_t(i)];
        const auto check = [&](double got, double added, DType dtype) {
          EXPECT_NEAR(got, n + added, test::tolerance(double(hidden), std::abs(n) + std::abs(added), n + added, dtype));
        };
        check(to_float(y[std::size_t(r * stride + i)]), to_float(before[std::size_t(r * stride + i)]), kDType<T>);
        check(out[std::size_t(r * hidden + i)], base[std::size_t(r * hidden + i)], DType::f32);
      }
    }
  }
}

// Outputs past half of the last-level cache are stored past it: the same bits as a row alone.
TEST(RmsNormValues, StreamedRowsKeepTheirBits) {
  const std::int64_t hidden = 4101, stride = 4112;
  const auto rows = std::int64_t(this_device().l3_bytes / 2 / std::size_t(hidden * 4)) + 2;
  Buffer x(std::size_t(rows * stride) * 4), out(std::size_t(rows * stride) * 4);
  std::vector<float> weight(std::size_t(hidden), 1.5f), alone = weight;
  test::Random random(2);
  for (std::int64_t i = 0; i < rows * stride; ++i) x.as<float>()[i] = float(i % 1013) - 500.0f;
  for (Isa isa : supported_isas()) {
    if (!rms_norm_rows.row(isa)) continue;
    Context context({.num_threads = 2, .isa = isa});
    rms_norm(context, {x.data(), DType::f32, {rows, hidden}, {stride, 1}}, {weight.data(), DType::f32, {hidden}},
             {out.data(), DType::f32, {rows, hidden}, {stride, 1}});
    for (int i = 0; i < 20; ++i) {
      const std::int64_t r = i == 0 ? rows - 1 : random.integer(0, rows - 1);
      rms_norm(context, {x.as<float>() + r * stride, DType::f32, {1, hidden}}, {weight.data(), DType::f32, {hidden}},
               {alone.data(), DType::f32, {1, hidden}});
      EXPECT_TRUE(std::equal(alone.begin(), alone.end(), out.as<float>() + r * stride))
          << isa_name(isa) << " row " << r;
    }
  }
}

std::vector<float> normalise(std::vector<float> x, float eps) {
  std::vector<float> weight(x.size(), 1.0f), out(x.size());
  const auto n = std::int64_t(x.size());
  Context context({.num_threads = 1});
  rms_norm(context, {x.data(), DType::f32, {1, n}}, {weight.data(), DType::f32, {n}}, {out.data(), DType::f32, {1, n}},
           {.eps = eps});
  return out;
}

// Eps inside the root; large squares.
TEST(RmsNormValues, EpsilonIsInsideTheRoot) {
  EXPECT_NEAR(normalise({1e-3f, 1e-3f, 1e-3f, 1e-3f}, 1e-6f)[0], 0.707107, 1e-6);
  EXPECT_NEAR(normalise({1e-20f, 1e-20f, 1e-20f, 1e-20f}, 1e-6f)[0], 1e-17, 1e-23);
}
TEST(RmsNormValues, LargeFiniteInputStaysFinite) {
  for (float size : {1e20f, 3e38f}) {
    const auto y = normalise({size, -size}, 1e-6f);
    EXPECT_NEAR(y[0], 1.0, 1e-6);
    EXPECT_NEAR(y[1], -1.0, 1e-6);
  }
}
// Rows whose squares are below the smallest float, down to subnormal values, with an eps as small and with none.
TEST(RmsNormValues, RowsOfAnySizeAreNormalised) {
  for (Isa isa : supported_isas()) {
    if (!rms_norm_rows.row(isa)) continue;
    Context context({.num_threads = 1, .isa = isa});
    for (double size : {1e-45, 1e-41, 1e-30, 1e-20, 1e-15, 1.0, 1e15, 1e19, 1e30, 1e38}) {
      for (double eps : {0.0, 1e-45, 1e-38, 1e-30, 1e-6, 1.0}) {
        std::vector<float> x, weight(19, 0.5f), out(19);
        for (int i = 0; i < 19; ++i) x.push_back(float(size * (i % 2 ? 1 + i % 3 : -i % 4)));
        rms_norm(context, {x.data(), DType::f32, {1, 19}}, {weight.data(), DType::f32, {19}},
                 {out.data(), DType::f32, {1, 19}}, {.eps = float(eps)});
        const auto expected = reference::rms_norm({x.begin(), x.end()}, std::vector<double>(19, 0.5), float(eps));
        for (std::size_t i = 0; i < 19; ++i) {
          EXPECT_NEAR(out[i], expected[i], test::tolerance(19, std::abs(expected[i]), expected[i], DType::f32))
              << isa_name(isa) << " size " << size << " eps " << eps;
        }
      }
    }
    EXPECT_EQ(normalise({0, 0, 0}, 0.0f), (std::vector<float>{0, 0, 0}));
  }
}
TEST(RmsNormValues, NanStaysInItsRow) {
  const auto y = normalise({1.0f, std::numeric_limits<float>::quiet_NaN()}, 1e-6f);
  EXPECT_TRUE(std::isnan(y[0]) && std::isnan(y[1]));
  for (float other : {0.0f, 1e-30f, 1e30f}) {
    EXPECT_TRUE(std::isnan(normalise({other, std::numeric_limits<float>::quiet_NaN()}, 0.0f)[0]));
    EXPECT_TRUE(std::isnan(normalise({other, std::numeric_limits<float>::infinity()}, 0.0f)[1]));
  }
}

// Gemma's 1 + w is summed in f32.
TEST(RmsNormValues, WeightOffsetIsAddedInFloat) {
  Context context({.num_threads = 1});
  const float x[2] = {1.0f, 0.0f};
  const BFloat16 weight_bf16[2] = {to_bfloat16(15.8125f), to_bfloat16(15.8125f)};
  const float weight[2] = {to_float(weight_bf16[0]), to_float(weight_bf16[1])};
  float y[2];
  rms_norm(context, {x, DType::f32, {1, 2}}, {weight, DType::f32, {2}}, {y, DType::f32, {1, 2}},
           {.eps = 1e-6f, .weight_offset = 1.0f});
  EXPECT_NEAR(y[0], 23.77644, 2e-5);
}

TEST(RmsNormProfile, CountsBytesAndFlops) {
  Context context({.num_threads = 1});
  Profiler profiler;
  context.set_profiler(&profiler);
  const float x[8] = {1, 2, 3, 4, 5, 6, 7, 8}, weight[4] = {1, 1, 1, 1};
  float y[8];
  rms_norm(context, {x, DType::f32, {2, 4}}, {weight, DType::f32, {4}}, {y, DType::f32, {2, 4}});
  const auto totals = profiler.totals();
  ASSERT_EQ(totals.size(), 1u);
  EXPECT_EQ(totals[0].op, "rms_norm");
  EXPECT_EQ(totals[0].bytes, 4 * (8 + 8 + 4));
  EXPECT_EQ(totals[0].flops, 4 * 8);
}

TEST(RmsNormErrors, NameTheArgument) {
  Context context({.num_threads = 1});
  float x[8] = {}, w[4] = {}, out[8];
  const auto message = [&](const ConstTensorView& weight, const TensorView& y, float eps) -> std::string {
    return message_of([&] { rms_norm(context, {x, DType::f32, {2, 4}}, weight, y, {.eps = eps}); });
  };
  const ConstTensorView weight(w, DType::f32, {4});
  const TensorView y(out, DType::f32, {2, 4});
  EXPECT_EQ(message(ConstTensorView(w, DType::f32, {3}), y, 1e-5f),
            "rms_norm: weight must be [4] (-1: any), got [3] f32");
  EXPECT_NE(message(weight, TensorView(out, DType::s8, {2, 4}), 1e-5f).find("out must be f32"), std::string::npos);
  EXPECT_NE(message(weight, TensorView(x + 1, DType::f32, {1, 4}), 1e-5f), "");
  EXPECT_EQ(message(weight, y, -1.0f), "rms_norm: eps is -1, must be from 0 to 1");
  EXPECT_NE(message(weight, TensorView(out, DType::f32, {2, 4}, {0, 1}), 1e-5f).find("out has stride 0"),
            std::string::npos);
}

// In place means the same elements at the same addresses: another dtype or row stride would write rows not yet read.
TEST(RmsNormErrors, InPlaceOrApart) {
  Context context({.num_threads = 1});
  alignas(64) float memory[64] = {}, weights[4] = {1, 1, 1, 1}, other[32] = {};
  const ConstTensorView weight(weights, DType::f32, {4}), x(memory, DType::f32, {3, 4}, {8, 1});
  const TensorView apart(other, DType::f32, {3, 4});
  const auto message = [&](const ConstTensorView& in, const TensorView& out, const RmsNormOptions& options) {
    return message_of([&] { rms_norm(context, in, weight, out, options); });
  };
  const TensorView in_place(memory, DType::f32, {3, 4}, {8, 1}), denser(memory, DType::f32, {3, 4});
  EXPECT_EQ(message(x, in_place, {}), "");
  EXPECT_NE(message(x, denser, {}).find("out must not overlap x"), std::string::npos);
  EXPECT_NE(message({memory, DType::bf16, {3, 4}, {8, 1}}, in_place, {}).find("out must not overlap x"),
            std::string::npos);
  const ConstTensorView residual(memory + 32, DType::f32, {3, 4}, {8, 1});
  const TensorView sum(memory + 32, DType::f32, {3, 4}, {8, 1}), wider(memory + 32, DType::f32, {3, 4}, {9, 1});
  EXPECT_EQ(message(x, apart, {.residual = residual, .residual_out = sum}), "");
  EXPECT_EQ(message(x, apart, {.residual = residual, .residual_out = in_place}), "");
  EXPECT_NE(
      message(x, apart, {.residual = residual, .residual_out = wider}).find("residual_out must not overlap residual"),
      std::string::npos);
  EXPECT_NE(message(x, apart, {.residual = residual, .residual_out = denser}).find("residual_out must not overlap x"),
            std::string::npos);
  EXPECT_NE(message({other, DType::f32, {1, 4}}, {memory, DType::f32, {1, 4}},
                    {.residual_out = TensorView(weights, DType::f32, {1, 4})})
                .find("residual_out must not overlap weight"),
            std::string::npos);
  EXPECT_NE(message({other, DType::f32, {2, 4}}, {memory, DType::f32, {2, 4}},
                    {.residual_out = TensorView(memory + 32, DType::f32, {2, 4}, {0, 1})})
                .find("residual_out has stride 0"),
            std::string::npos);
}

}  // namespace
}  // namespace ops_transformer
