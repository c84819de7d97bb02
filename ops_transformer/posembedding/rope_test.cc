// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/posembedding/rope.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <functional>
#include <vector>

#include "ops_transformer/posembedding/rope_kernel.h"
#include "ops_transformer/posembedding/rope_reference.h"
#include "ops_transformer/profiler/profiler.h"
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

constexpr RopeStyle kStyles[] = {RopeStyle::half_split, RopeStyle::interleaved};

template <class T>
class Rope : public testing::Test {};
using Types = testing::Types<float, BFloat16, Float16>;
TYPED_TEST_SUITE(Rope, Types);

TYPED_TEST(Rope, MatchesReferenceAtEveryLevel) {
  using T = TypeParam;
  const std::vector<std::int64_t> positions = {0, 5, 31, 32, 5000, -7, 1 << 20, 3};
  const auto tokens = std::int64_t(positions.size()), heads = std::int64_t{3};
  for (Isa isa : supported_isas()) {
    if (!rope_tokens.row(isa)) continue;
    Context context({.num_threads = 2, .isa = isa});
    for (RopeStyle style : kStyles) {
      for (auto [head_dim, rotary_dim] : std::vector<std::array<std::int64_t, 2>>{
               {2, 2}, {8, 4}, {64, 64}, {80, 20}, {96, 96}, {128, 32}, {131, 70}, {576, 64}}) {
        SCOPED_TRACE(std::string(isa_name(isa)) + " head_dim " + std::to_string(head_dim) + " rotary_dim " +
                     std::to_string(rotary_dim) + " style " + std::to_string(int(style)));
        test::Random random(5);
        const RopeTable table({.rotary_dim = rotary_dim, .style = style, .table_len = 32});
        const std::int64_t head_stride = head_dim + 1, token_stride = heads * head_stride + 2;
        GuardedBuffer<T> x(std::size_t((tokens - 1) * token_stride + (heads - 1) * head_stride + head_dim)),
            out(std::size_t(tokens * heads * head_dim));
        test::fill_normal(x, random);
        rotary_embedding(context, {x.data(), kDType<T>, {tokens, heads, head_dim}, {token_stride, head_stride, 1}},
                         {positions.data(), DType::i64, {tokens}}, table,
                         {out.data(), kDType<T>, {tokens, heads, head_dim}});
        for (std::int64_t t = 0; t < tokens; ++t) {
          for (std::int64_t h = 0; h < heads; ++h) {
            std::vector<double> row;
            for (std::int64_t i = 0; i < head_dim; ++i) {
              row.push_back(to_float(x[std::size_t(t * token_stride + h * head_stride + i)]));
            }
            const auto expected = reference::rotary_embedding(row, positions[std::size_t(t)], rotary_dim, 10000.0, 1.0,
                                                              style == RopeStyle::interleaved);
            for (std::int64_t i = 0; i < head_dim; ++i) {
              const T y = out[std::size_t((t * heads + h) * head_dim + i)];
              if (i >= rotary_dim) {
                EXPECT_EQ(to_float(y), row[std::size_t(i)]);
                continue;
              }
              const std::int64_t half = rotary_dim / 2;
              const std::int64_t partner = style == RopeStyle::interleaved ? i ^ 1 : i < half ? i + half : i - half;
              const double magnitude = std::abs(row[std::size_t(i)]) + std::abs(row[std::size_t(partner)]);
              const double e = expected[std::size_t(i)];
              EXPECT_NEAR(to_float(y), e, test::tolerance(2, magnitude, e, kDType<T>)) << "token " << t << " dim " << i;
            }
          }
        }
      }
    }
  }
}

// x = (1, 0) in every pair gives cos and sin themselves.
std::vector<float> rotate_units(Context& context, const RopeTable& table, std::vector<std::int64_t> positions) {
  const std::int64_t n = table.rotary_dim(), tokens = std::int64_t(positions.size());
  std::vector<float> x(std::size_t(tokens * n), 0.0f);
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t i = 0; i < n / 2; ++i) x[std::size_t(t * n + i)] = 1.0f;
  }
  const TensorView view(x.data(), DType::f32, {tokens, 1, n});
  rotary_embedding(context, view, {positions.data(), DType::i64, {tokens}}, table, view);
  return x;
}

TEST(RopeAngles, AreExactAtEveryPosition) {
  test::Random random(3);
  std::vector<std::int64_t> positions = {0, 1, -1, 2047, 2048, 4095, 15962, 1 << 20, 1 << 30};
  for (std::int64_t extreme : {RopeTable::kMaxPosition, RopeTable::kMaxPosition - 1}) {
    positions.push_back(extreme);
    positions.push_back(-extreme);
  }
  for (int i = 0; i < 200; ++i) {
    positions.push_back(random.integer(-RopeTable::kMaxPosition, RopeTable::kMaxPosition));
    positions.push_back(random.integer(-100000, 100000));
  }
  for (double theta : {10000.0, 500000.0, 1e6}) {
    for (double scale : {1.0, 2.0, 3.7, 0.1, 0x1p-10}) {
      const RopeTable table({.rotary_dim = 128, .theta = theta, .table_len = 2048, .position_scale = scale});
      for (Isa isa : supported_isas()) {
        if (!rope_tokens.row(isa)) continue;
        Context context({.num_threads = 1, .isa = isa});
        const auto y = rotate_units(context, table, positions);
        double worst = 0;
        for (std::size_t t = 0; t < positions.size(); ++t) {
          for (std::int64_t i = 0; i < 64; ++i) {
            const long double angle = reference::rope_angle(positions[t], i, 128, theta, scale);
            worst = std::max(worst, double(std::abs(y[t * 128 + std::size_t(i)] - std::cos(angle))));
            worst = std::max(worst, double(std::abs(y[t * 128 + 64 + std::size_t(i)] - std::sin(angle))));
          }
        }
        EXPECT_LE(worst, 1e-6) << isa_name(isa) << " theta " << theta << " scale " << scale;
        RecordProperty("worst_" + std::string(isa_name(isa)), fmt::format("{:.2e}", worst));
      }
    }
  }
}

TEST(RopeAngles, AccessorAgreesWithTheTable) {
  Context context({.num_threads = 1});
  const RopeTable table({.rotary_dim = 16, .table_len = 8});
  for (std::int64_t position : {0, 7, 8, -3, 123456}) {
    std::array<float, 8> cosines, sines;
    table.cos_sin(position, cosines, sines);
    const auto y = rotate_units(context, table, {position});
    for (std::size_t i = 0; i < 8; ++i) {
      EXPECT_NEAR(cosines[i], y[i], position < 8 && position >= 0 ? 0 : 4e-7);
      EXPECT_NEAR(sines[i], y[8 + i], position < 8 && position >= 0 ? 0 : 4e-7);
    }
  }
  std::array<float, 8> a;
  std::array<float, 7> b;
  EXPECT_THROW(table.cos_sin(0, a, b), InvalidArgument);
  EXPECT_THROW(table.cos_sin((std::int64_t{1} << 31) + 1, a, a), InvalidArgument);
}

std::vector<float> rotate_row(std::vector<float> x, std::int64_t position, const RopeOptions& options, Isa isa) {
  Context context({.num_threads = 1, .isa = isa});
  std::vector<float> out(x.size());
  const auto n = std::int64_t(x.size());
  rotary_embedding(context, {x.data(), DType::f32, {1, 1, n}}, {&position, DType::i64, {1}}, RopeTable(options),
                   {out.data(), DType::f32, {1, 1, n}});
  return out;
}

void expect_near(const std::vector<float>& y, std::vector<double> expected, double bound) {
  ASSERT_EQ(y.size(), expected.size());
  for (std::size_t i = 0; i < y.size(); ++i) EXPECT_NEAR(y[i], expected[i], bound) << "element " << i;
}

class RopeValues : public testing::TestWithParam<Isa> {};
INSTANTIATE_TEST_SUITE_P(Levels, RopeValues, testing::ValuesIn(supported_isas().begin(), supported_isas().end()),
                         [](const auto& level) { return std::string(isa_name(level.param)); });

TEST_P(RopeValues, PairsFollowTheStyle) {
  expect_near(rotate_row({1, 2, 3, 4}, 1, {.rotary_dim = 4}, GetParam()), {-1.984111, 1.959901, 2.462378, 4.019800},
              1e-6);
  expect_near(rotate_row({1, 2, 3, 4}, 1, {.rotary_dim = 4, .style = RopeStyle::interleaved}, GetParam()),
              {-1.142640, 1.922076, 2.959851, 4.029799}, 1e-6);
}

// The frequencies are those of rotary_dim, not of head_dim.
TEST_P(RopeValues, PartialRotationKeepsTheRest) {
  expect_near(rotate_row({1, 2, 3, 4, 5, 6, 7, 8}, 1, {.rotary_dim = 4}, GetParam()),
              {-1.984111, 1.959901, 2.462378, 4.019800, 5, 6, 7, 8}, 1e-6);
}

// A bf16 position would alias its neighbours.
TEST_P(RopeValues, LargePositionsDontAlias) {
  Context context({.num_threads = 1, .isa = GetParam()});
  const RopeTable table({.rotary_dim = 2});
  for (auto [position, cosine] :
       std::vector<std::pair<std::int32_t, double>>{{15962, -0.908016}, {4095, -0.065976}, {1 << 20, 0.943808}}) {
    BFloat16 x[2] = {to_bfloat16(1.0f), to_bfloat16(0.0f)};
    const TensorView view(x, DType::bf16, {1, 1, 2});
    rotary_embedding(context, view, {&position, DType::i32, {1}}, table, view);
    EXPECT_NEAR(to_float(x[0]), cosine, std::abs(cosine) * 0x1p-8 + 1e-6);
  }
}

// Of computed angles.
TEST_P(RopeValues, NegativePositionsTurnBack) {
  expect_near(rotate_row({1, 2, 3, 4}, -1, {.rotary_dim = 4}, GetParam()), {3.064715, 2.039899, .779436, 3.979800},
              1e-6);
}

TEST_P(RopeValues, LinearScalingDividesPositions) {
  expect_near(rotate_row({1, 0}, 1, {.rotary_dim = 2, .position_scale = 2}, GetParam()), {.877583, .479426}, 1e-6);
  for (std::int64_t table_len : {0, 2048}) {
    const auto scaled =
        rotate_row({1, 0}, 8, {.rotary_dim = 2, .table_len = table_len, .position_scale = 4}, GetParam());
    EXPECT_EQ(scaled, rotate_row({1, 0}, 2, {.rotary_dim = 2, .table_len = table_len}, GetParam()));
  }
}

TEST_P(RopeValues, FrequencyFactorsDivide) {
  const float factors[2] = {1.0f, 8.0f};
  const auto y =
      rotate_row({1, 1, 0, 0}, 3000, {.rotary_dim = 4, .theta = 100.0, .frequency_factors = factors}, GetParam());
  expect_near(y, {std::cos(3000.0), std::cos(3000.0 / 80), std::sin(3000.0), std::sin(3000.0 / 80)}, 1e-6);
}

// Every scaling, looked up and computed, against its published formula. YaRN's amplitude scales the error as well.
TEST_P(RopeValues, ScalingsFollowTheirFormulas) {
  Context context({.num_threads = 1, .isa = GetParam()});
  struct Case {
    double theta;
    RopeScaling scaling;
    double amplitude;
    std::function<long double(std::int64_t pair)> frequency;
  };
  constexpr std::int64_t kDim = 64;
  const Case cases[] = {
      {1e4, NtkScaling{.factor = 8}, 1.0, [](auto i) { return reference::ntk_frequency(i, kDim, 1e4, 8); }},
      {5e5, Llama3Scaling{.factor = 32}, 1.0,
       [](auto i) { return reference::llama3_frequency(i, kDim, 5e5, 32, 1, 4, 8192); }},
      {1e6, YarnScaling{.factor = 4, .original_context_len = 32768}, 1.138629436111989,
       [](auto i) { return reference::yarn_frequency(i, kDim, 1e6, 4, 32768, 32, 1); }},
      {1e4,
       YarnScaling{.factor = 16, .original_context_len = 512, .beta_fast = 8, .beta_slow = 2, .attention_factor = 0.5},
       0.5, [](auto i) { return reference::yarn_frequency(i, kDim, 1e4, 16, 512, 8, 2); }},
  };
  const std::vector<std::int64_t> positions = {0, 1, 511, 2047, 2048, 32767, 131072, -3};
  for (const Case& one : cases) {
    SCOPED_TRACE(one.scaling.index());
    const auto y =
        rotate_units(context, RopeTable({.rotary_dim = kDim, .theta = one.theta, .scaling = one.scaling}), positions);
    for (std::size_t t = 0; t < positions.size(); ++t) {
      for (std::int64_t i = 0; i < kDim / 2; ++i) {
        const long double angle = (long double)positions[t] * one.frequency(i);
        const float* row = y.data() + t * kDim + std::size_t(i);
        ASSERT_NEAR(row[0], one.amplitude * double(std::cos(angle)), 1e-6 * one.amplitude) << positions[t] << " " << i;
        ASSERT_NEAR(row[kDim / 2], one.amplitude * double(std::sin(angle)), 1e-6 * one.amplitude);
      }
    }
  }
}

// A factor of 1 changes nothing.
TEST_P(RopeValues, ScalingByOneIsNone) {
  Context context({.num_threads = 1, .isa = GetParam()});
  const std::vector<std::int64_t> positions = {7, 5000};
  const auto plain = rotate_units(context, RopeTable({.rotary_dim = 32}), positions);
  for (const RopeScaling& scaling : {RopeScaling(NtkScaling{}), RopeScaling(Llama3Scaling{.factor = 1}),
                                     RopeScaling(YarnScaling{.original_context_len = 100})}) {
    EXPECT_EQ(rotate_units(context, RopeTable({.rotary_dim = 32, .scaling = scaling}), positions), plain);
  }
}

// The largest frequencies that options may ask for, by factors alone or with a scale, at the furthest positions.
TEST_P(RopeValues, FrequencyFactorsBelowOneKeepTheBound) {
  for (auto [factor, scale] : {std::pair{0.25f, 1.0}, {0x1p-10f, 1.0}, {0.3f, 0.004}, {0x1p-30f, 0x1p20}}) {
    const RopeOptions options{.rotary_dim = 2, .position_scale = scale, .frequency_factors = {&factor, 1}};
    for (std::int64_t position : {std::int64_t{3}, std::int64_t{123456789}, RopeTable::kMaxPosition - 1}) {
      const long double angle = (long double)position / ((long double)factor * scale);
      expect_near(rotate_row({1, 0}, position, options, GetParam()), {double(std::cos(angle)), double(std::sin(angle))},
                  1e-6);
    }
  }
}

TEST(Rope, OneRowsBitsDontDependOnItsBatchOrThreads) {
  test::Random random(9);
  const std::int64_t tokens = 300, heads = 4, head_dim = 64;
  std::vector<float> x(std::size_t(tokens * heads * head_dim)), once(x.size()), out(x.size());
  test::fill_normal(x, random);
  std::vector<std::int32_t> positions;
  for (std::int64_t t = 0; t < tokens; ++t) positions.push_back(std::int32_t(7 * t));
  const RopeTable table({.rotary_dim = 64, .table_len = 1024});
  Context one({.num_threads = 1});
  for (std::int64_t t = 0; t < tokens; ++t) {
    const auto offset = std::size_t(t * heads * head_dim);
    rotary_embedding(one, {x.data() + offset, DType::f32, {1, heads, head_dim}},
                     {&positions[std::size_t(t)], DType::i32, {1}}, table,
                     {once.data() + offset, DType::f32, {1, heads, head_dim}});
  }
  for (int threads : {1, 2, 3, 8}) {
    Context context({.num_threads = threads});
    rotary_embedding(context, {x.data(), DType::f32, {tokens, heads, head_dim}},
                     {positions.data(), DType::i32, {tokens}}, table,
                     {out.data(), DType::f32, {tokens, heads, head_dim}});
    EXPECT_EQ(out, once) << threads << " threads";
  }
}

// The caller's table is never read outside.
TEST(RopeTableOfTheCaller, ChecksEveryPosition) {
  Context context({.num_threads = 1});
  const std::int64_t table_len = 4, half = 2;
  const RopeTable own({.rotary_dim = 4});
  GuardedBuffer<float> cosines(std::size_t(table_len * half)), sines(std::size_t(table_len * half));
  for (std::int64_t p = 0; p < table_len; ++p) {
    own.cos_sin(p, {cosines.data() + p * half, 2}, {sines.data() + p * half, 2});
  }
  const ConstTensorView cos_view(cosines.data(), DType::f32, {table_len, half});
  const ConstTensorView sin_view(sines.data(), DType::f32, {table_len, half});
  const std::vector<float> x = {1, 2, 3, 4, 1, 2, 3, 4};
  std::vector<float> out(8, -1.0f);
  const auto run = [&](std::vector<std::int32_t> positions) -> std::string {
    return message_of([&] {
      rotary_embedding(context, {x.data(), DType::f32, {2, 1, 4}}, {positions.data(), DType::i32, {2}}, cos_view,
                       sin_view, RopeStyle::half_split, {out.data(), DType::f32, {2, 1, 4}});
    });
  };
  EXPECT_EQ(run({3, 4}), "rotary_embedding: positions[1] is 4, must be from 0 to 3");
  EXPECT_EQ(run({-1, 0}), "rotary_embedding: positions[0] is -1, must be from 0 to 3");
  EXPECT_EQ(out, std::vector<float>(8, -1.0f));
  EXPECT_EQ(run({3, 0}), "");
  const auto third = rotate_row({1, 2, 3, 4}, 3, {.rotary_dim = 4}, supported_isas().back());
  EXPECT_EQ(std::vector<float>(out.begin(), out.begin() + 4), third);
  EXPECT_EQ(std::vector<float>(out.begin() + 4, out.end()), (std::vector<float>{1, 2, 3, 4}));
}

TEST(RopeErrors, NameTheArgument) {
  const auto table_error = [](const RopeOptions& options) -> std::string {
    return message_of([&] { RopeTable table(options); });
  };
  EXPECT_EQ(table_error({.rotary_dim = 3}), "RopeTable: rotary_dim is 3, must be even, from 2 to 2^20");
  EXPECT_NE(table_error({.rotary_dim = 0}), "");
  EXPECT_NE(table_error({.rotary_dim = 4, .theta = 0.5}).find("theta is 0.5"), std::string::npos);
  EXPECT_NE(table_error({.rotary_dim = 4, .theta = std::nan("")}), "");
  EXPECT_NE(table_error({.rotary_dim = 4, .table_len = -1}).find("table_len is -1"), std::string::npos);
  EXPECT_NE(table_error({.rotary_dim = 4, .table_len = std::int64_t{1} << 62}), "");
  EXPECT_NE(table_error({.rotary_dim = 4, .position_scale = 0}).find("position_scale is 0"), std::string::npos);
  EXPECT_EQ(table_error({.rotary_dim = 4, .scaling = NtkScaling{.factor = 0.5}}),
            "RopeTable: ntk.factor is 0.5, must be from 1 to 2^20");
  EXPECT_NE(table_error({.rotary_dim = 2, .scaling = NtkScaling{.factor = 2}}).find("at least 4"), std::string::npos);
  EXPECT_NE(table_error({.rotary_dim = 4, .scaling = Llama3Scaling{.high_frequency_factor = 1}}), "");
  EXPECT_NE(table_error({.rotary_dim = 4, .scaling = Llama3Scaling{.original_context_len = 0}}), "");
  EXPECT_NE(table_error({.rotary_dim = 4, .scaling = YarnScaling{.factor = 2}}).find("original_context_len is 0"),
            std::string::npos);
  EXPECT_NE(
      table_error({.rotary_dim = 4, .scaling = YarnScaling{.original_context_len = 9, .beta_fast = std::nan("")}}), "");
  EXPECT_NE(table_error({.rotary_dim = 4, .theta = 1, .scaling = YarnScaling{.original_context_len = 9}}), "");
  const float factor = 0.0f;
  EXPECT_EQ(table_error({.rotary_dim = 2, .frequency_factors = {&factor, 1}}),
            "RopeTable: a frequency factor is 0, must be finite and at least 1/1024 / position_scale = 0.0009765625");
  const float small = 0.01f;
  EXPECT_EQ(table_error({.rotary_dim = 2, .frequency_factors = {&small, 1}}), "");
  EXPECT_NE(table_error({.rotary_dim = 2, .position_scale = 0.05, .frequency_factors = {&small, 1}}), "");
  EXPECT_EQ(table_error({.rotary_dim = 2, .position_scale = 0.0009}),
            "RopeTable: position_scale is 0.0009, must be at least 1/1024");
  EXPECT_NE(table_error({.rotary_dim = 4, .frequency_factors = {&factor, 1}}), "");

  Context context({.num_threads = 1});
  const RopeTable table({.rotary_dim = 4});
  float x[16] = {}, out[16];
  std::int64_t positions[2] = {};
  const auto error = [&](const ConstTensorView& input, const ConstTensorView& at, const TensorView& y) -> std::string {
    try {
      rotary_embedding(context, input, at, table, y);
    } catch (const InvalidArgument& e) {
      return e.what();
    }
    return "";
  };
  const ConstTensorView good_x(x, DType::f32, {2, 1, 4}), good_positions(positions, DType::i64, {2});
  const TensorView good_out(out, DType::f32, {2, 1, 4});
  EXPECT_EQ(error(good_x, good_positions, good_out), "");
  EXPECT_EQ(error({x, DType::f32, {2, 1, 3}}, good_positions, good_out),
            "rotary_embedding: rotary_dim is 4, must be at most head_dim = 3");
  EXPECT_NE(error(good_x, {positions, DType::i64, {1}}, good_out).find("positions must be [2]"), std::string::npos);
  EXPECT_NE(error(good_x, {positions, DType::f32, {2}}, good_out).find("positions must be i32 or i64"),
            std::string::npos);
  EXPECT_NE(error(good_x, good_positions, {out, DType::bf16, {2, 1, 4}}).find("out must be f32"), std::string::npos);
  EXPECT_NE(error(good_x, good_positions, {x + 1, DType::f32, {2, 1, 4}}).find("out must not overlap x"),
            std::string::npos);
  EXPECT_NE(error(good_x, good_positions, {out, DType::f32, {2, 1, 4}, {0, 4, 1}}).find("out has stride 0"),
            std::string::npos);
  EXPECT_NE(error(good_x, good_positions, {x, DType::f32, {2, 1, 4}, {5, 4, 1}}).find("out must not overlap x"),
            std::string::npos);
  positions[1] = (std::int64_t{1} << 31) + 1;
  EXPECT_EQ(error(good_x, good_positions, good_out),
            "rotary_embedding: positions[1] is 2147483649, must be from -2147483648 to 2147483648");
  EXPECT_EQ(error({x, DType::f32, {0, 1, 4}}, {positions, DType::i64, {0}}, {out, DType::f32, {0, 1, 4}}), "");
}

TEST(RopeProfile, CountsBytesAndFlops) {
  Context context({.num_threads = 1});
  Profiler profiler;
  context.set_profiler(&profiler);
  float x[16] = {};
  const std::int64_t positions[2] = {0, 1};
  const TensorView view(x, DType::f32, {2, 1, 8});
  rotary_embedding(context, view, {positions, DType::i64, {2}}, RopeTable({.rotary_dim = 4}), view);
  ASSERT_EQ(profiler.totals().size(), 1u);
  EXPECT_EQ(profiler.totals()[0].bytes, 2 * 16 * 4);
  EXPECT_EQ(profiler.totals()[0].flops, 2 * 2 * 6);
}

}  // namespace
}  // namespace ops_transformer
