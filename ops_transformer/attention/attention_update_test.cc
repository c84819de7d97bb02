// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/attention/attention_update.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <tuple>
#include <vector>

#include "ops_transformer/attention/attention_kernel.h"
#include "ops_transformer/attention/attention_update_reference.h"
#include "tests/support/dtype_of.h"
#include "tests/support/guarded_buffer.h"
#include "tests/support/message_of.h"
#include "tests/support/random.h"
#include "tests/support/tolerance.h"

namespace ops_transformer {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();

struct Part {
  std::vector<float> out, lse;
  AttentionPartial view(std::int64_t rows) const {
    return {{out.data(), DType::f32, {rows, std::int64_t(out.size()) / rows}}, {lse.data(), DType::f32, {rows}}};
  }
};

Part merge(Context& context, const std::vector<Part>& parts, std::int64_t rows = 1) {
  std::vector<AttentionPartial> views;
  for (const Part& part : parts) views.push_back(part.view(rows));
  Part result{std::vector<float>(parts[0].out.size(), NAN), std::vector<float>(parts[0].lse.size(), NAN)};
  attention_update(context, views, {result.out.data(), DType::f32, {rows, std::int64_t(result.out.size()) / rows}},
                   TensorView(result.lse.data(), DType::f32, {rows}));
  return result;
}

TEST(AttentionUpdate, EmptyPartsChangeNothing) {
  for (Isa isa : supported_isas()) {
    if (!merge_attention_row.row(isa)) continue;
    Context context({.num_threads = 1, .isa = isa});
    const Part empty{{0, 0, 0}, {-kInf}}, garbage{{NAN, kInf, NAN}, {-kInf}}, live{{0.1f, -3.7f, 1e-30f}, {2.345f}};
    for (const auto& parts : {std::vector<Part>{empty, empty}, {garbage, garbage}}) {
      const Part r = merge(context, parts);
      EXPECT_EQ(r.out, (std::vector<float>{0, 0, 0}));
      EXPECT_EQ(r.lse[0], -kInf);
    }
    for (const auto& parts :
         {std::vector<Part>{live, empty}, {empty, live}, {live, garbage}, {garbage, live}, {live}}) {
      const Part r = merge(context, parts);
      EXPECT_EQ(r.out, live.out);
      EXPECT_EQ(r.lse, live.lse);
    }
  }
}

// What inference on Ascend writes for a row that sees no key.
TEST(AttentionUpdate, AnLseOfPlusInfinityIsEmptyToo) {
  for (Isa isa : supported_isas()) {
    if (!merge_attention_row.row(isa)) continue;
    Context context({.num_threads = 1, .isa = isa});
    const Part empty{{kNan, 5}, {kInf}}, live{{0.1f, -3.7f}, {2.345f}};
    for (const auto& parts : {std::vector<Part>{live, empty}, {empty, live}}) {
      EXPECT_EQ(merge(context, parts).out, live.out);
      EXPECT_EQ(merge(context, parts).lse, live.lse);
    }
    EXPECT_EQ(merge(context, {empty, empty}).out, (std::vector<float>{0, 0}));
    EXPECT_EQ(merge(context, {empty, empty}).lse[0], -kInf);
  }
}

// Natural logarithms.
TEST(AttentionUpdate, WeighsByNaturalLogarithms) {
  for (Isa isa : supported_isas()) {
    if (!merge_attention_row.row(isa)) continue;
    Context context({.num_threads = 1, .isa = isa});
    const Part r = merge(context, {{{1}, {0}}, {{4}, {0.693147181f}}});
    EXPECT_NEAR(r.out[0], 3.0f, 1e-6);
    EXPECT_NEAR(r.lse[0], 1.098612f, 1e-6);
  }
}

// A part that went wrong shows in the result, wherever it stands among the others.
TEST(AttentionUpdate, NanIsNeverLost) {
  for (Isa isa : supported_isas()) {
    if (!merge_attention_row.row(isa)) continue;
    Context context({.num_threads = 1, .isa = isa});
    const Part wrong{{1, 2, 3}, {kNan}}, small{{1, 2, 3}, {-5}}, large{{1, 2, 3}, {5}}, empty{{0, 0, 0}, {-kInf}};
    for (const auto& parts : {std::vector<Part>{wrong, large}, {large, wrong}, {small, wrong, large}, {wrong, empty}}) {
      const Part r = merge(context, parts);
      for (float x : r.out) EXPECT_TRUE(std::isnan(x));
      EXPECT_TRUE(std::isnan(r.lse[0]));
    }
  }
}

template <class T>
class AttentionUpdateOf : public testing::Test {};
using Types = testing::Types<float, BFloat16, Float16>;
TYPED_TEST_SUITE(AttentionUpdateOf, Types);

TYPED_TEST(AttentionUpdateOf, MatchesFloat64) {
  using T = TypeParam;
  test::Random random(2);
  for (auto [num_parts, rows, dim] : {std::tuple{1, 1, 1}, {2, 67, 12}, {3, 5, 65}, {7, 300, 128}, {70, 3, 33}}) {
    std::vector<std::unique_ptr<test::GuardedBuffer<T>>> outs;
    std::vector<std::unique_ptr<test::GuardedBuffer<float>>> lses;
    std::vector<AttentionPartial> parts;
    for (int p = 0; p < num_parts; ++p) {
      outs.push_back(std::make_unique<test::GuardedBuffer<T>>(std::size_t(rows * dim)));
      lses.push_back(std::make_unique<test::GuardedBuffer<float>>(std::size_t(rows)));
      test::fill_normal(*outs.back(), random);
      for (float& lse : *lses.back()) lse = random.integer(0, 4) ? random.normal(10) : -kInf;
      parts.push_back({{outs.back()->data(), test::kDType<T>, {rows, dim}}, {lses.back()->data(), DType::f32, {rows}}});
    }
    for (Isa isa : supported_isas()) {
      if (!merge_attention_row.row(isa)) continue;
      Context context({.num_threads = 2, .isa = isa});
      test::GuardedBuffer<T> out(std::size_t(rows * dim));
      test::GuardedBuffer<float> lse(static_cast<std::size_t>(rows));
      attention_update(context, parts, {out.data(), test::kDType<T>, {rows, dim}},
                       TensorView(lse.data(), DType::f32, {rows}));
      for (std::size_t r = 0; r < std::size_t(rows); ++r) {
        std::vector<std::vector<double>> row_outs;
        std::vector<double> row_lses;
        double largest = 0;
        for (std::size_t p = 0; p < std::size_t(num_parts); ++p) {
          row_outs.emplace_back();
          for (std::size_t d = 0; d < std::size_t(dim); ++d) {
            row_outs.back().push_back(double(to_float((*outs[p])[r * std::size_t(dim) + d])));
          }
          row_lses.push_back(double((*lses[p])[r]));
          if (std::isfinite(row_lses.back())) largest = std::max(largest, std::abs(row_lses.back()));
        }
        const reference::MergedRow expected = reference::merge_row(row_outs, row_lses);
        // An lse is a score: an error in it is a relative one of its weight.
        const double weight_error = 2 * test::tolerance(1, largest, 0, DType::f32);
        for (std::size_t d = 0; d < std::size_t(dim); ++d) {
          const double bound = weight_error * expected.magnitude[d] +
                               test::tolerance(num_parts, expected.magnitude[d], expected.out[d], test::kDType<T>);
          ASSERT_NEAR(to_float(out[r * std::size_t(dim) + d]), expected.out[d], bound) << isa_name(isa) << " row " << r;
        }
        if (std::isinf(expected.lse)) {
          ASSERT_EQ(lse[r], -kInf);
        } else {
          ASSERT_NEAR(lse[r], expected.lse, weight_error + test::tolerance(num_parts, 1, expected.lse, DType::f32));
        }
      }
    }
  }
}

TEST(AttentionUpdate, MayWriteOverAPart) {
  Context context({.num_threads = 1});
  std::vector<BFloat16> a = {to_bfloat16(1), to_bfloat16(2)}, b = {to_bfloat16(3), to_bfloat16(6)};
  std::vector<float> lse_a = {0, 0}, lse_b = {0, 0};
  const TensorView out(a.data(), DType::bf16, {2, 1}), lse(lse_a.data(), DType::f32, {2});
  const AttentionPartial parts[2] = {{out, lse}, {{b.data(), DType::bf16, {2, 1}}, {lse_b.data(), DType::f32, {2}}}};
  attention_update(context, parts, out, lse);
  EXPECT_EQ(to_float(a[0]), 2.0f);
  EXPECT_EQ(to_float(a[1]), 4.0f);
  EXPECT_NEAR(lse_a[0], 0.693147f, 1e-6);
}

TEST(AttentionUpdate, ErrorsNameThePart) {
  Context context({.num_threads = 1});
  const Part part{{1, 2}, {0}};
  std::vector<float> out(3);
  const AttentionPartial view = part.view(1);
  try {
    attention_update(context, std::span(&view, 1), {out.data(), DType::f32, {1, 3}});
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("parts[0].out must be [1, 3]"), std::string::npos) << error.what();
  }
}

struct RingPart {
  std::vector<float> out;
  float max, sum;
};
RingPart ring(Context& context, const std::vector<RingPart>& parts) {
  const auto dim = std::int64_t(parts[0].out.size());
  std::vector<std::vector<float>> sums;
  std::vector<RingAttentionPartial> views;
  sums.reserve(2 * parts.size());
  for (const RingPart& part : parts) {
    const float* max = sums.emplace_back(8, part.max).data();
    const float* sum = sums.emplace_back(8, part.sum).data();
    views.push_back({{part.out.data(), DType::f32, {1, dim}}, {max, DType::f32, {1, 8}}, {sum, DType::f32, {1, 8}}});
  }
  std::vector<float> max(8, kNan), sum(8, kNan);
  RingPart result{std::vector<float>(std::size_t(dim), kNan), 0, 0};
  ring_attention_update(context, views, {result.out.data(), DType::f32, {1, dim}}, {max.data(), DType::f32, {1, 8}},
                        {sum.data(), DType::f32, {1, 8}});
  for (int i = 0; i < 8; ++i) {
    const auto copy = std::size_t(i);
    EXPECT_TRUE(max[copy] == max[0] || std::isnan(max[0])) << max[copy];
    EXPECT_TRUE(sum[copy] == sum[0] || std::isnan(sum[0])) << sum[copy];
  }
  result.max = max[0];
  result.sum = sum[0];
  return result;
}

TEST(RingAttentionUpdate, EmptyPartsChangeNothing) {
  constexpr float kMost = std::numeric_limits<float>::max();
  for (Isa isa : supported_isas()) {
    if (!merge_attention_row.row(isa)) continue;
    Context context({.num_threads = 1, .isa = isa});
    const RingPart live{{0.1f, -3.7f, 1e-30f}, 2.345f, 0.3f};
    for (const RingPart& empty : {RingPart{{kNan, kInf, 0}, -kInf, 0},
                                  {{kNan, kInf, 0}, 7, 0},
                                  {{kNan, kInf, 0}, -kMost, kMost},
                                  {{kNan, kInf, 0}, -kInf, 1}}) {
      for (const auto& parts : {std::vector<RingPart>{live, empty}, {empty, live}, {empty, live, empty}}) {
        const RingPart r = ring(context, parts);
        EXPECT_EQ(r.out, live.out);
        EXPECT_EQ(r.max, live.max);
        EXPECT_EQ(r.sum, live.sum);
      }
      const RingPart none = ring(context, {empty, empty});
      EXPECT_EQ(none.out, (std::vector<float>{0, 0, 0}));
      EXPECT_EQ(none.max, -kInf);
      EXPECT_EQ(none.sum, 0);
    }
    EXPECT_TRUE(std::isnan(ring(context, {live, {{1, 2, 3}, 1, kNan}}).out[0]));
    EXPECT_TRUE(std::isnan(ring(context, {{{1, 2, 3}, kNan, 1}, live}).out[0]));
  }
}

// [S, B, N, D] and [B, N, S, 8], seen as [B, N, S, ...].
TEST(RingAttentionUpdate, MatchesFloat64) {
  test::Random random(4);
  for (auto [num_parts, batch, heads, len, dim] : {std::tuple{1, 1, 1, 1, 1}, {2, 2, 3, 5, 64}, {3, 1, 2, 40, 33}}) {
    const std::int64_t rows = std::int64_t{batch} * heads * len;
    struct Data {
      test::GuardedBuffer<BFloat16> out;
      test::GuardedBuffer<float> max, sum;
    };
    std::vector<std::unique_ptr<Data>> data;
    std::vector<RingAttentionPartial> parts;
    const auto out_view = [&](auto* p) {
      return BasicTensorView<std::byte>(p, DType::bf16, {batch, heads, len, dim},
                                        {std::int64_t{heads} * dim, dim, std::int64_t{batch} * heads * dim, 1});
    };
    const auto sum_view = [&](float* p) { return TensorView(p, DType::f32, {batch, heads, len, 8}); };
    for (int p = 0; p < num_parts; ++p) {
      Data& d = *data.emplace_back(new Data{test::GuardedBuffer<BFloat16>(std::size_t(rows * dim)),
                                            test::GuardedBuffer<float>(std::size_t(rows * 8)),
                                            test::GuardedBuffer<float>(std::size_t(rows * 8))});
      test::fill_normal(d.out, random);
      for (std::size_t r = 0; r < std::size_t(rows); ++r) {
        d.max[r * 8] = random.normal(3);  // the other copies stay NaN: the first is read
        d.sum[r * 8] = random.integer(0, 4) ? 1 + std::abs(random.normal(5)) : 0;
      }
      parts.push_back({out_view(d.out.data()), sum_view(d.max.data()), sum_view(d.sum.data())});
    }
    for (Isa isa : supported_isas()) {
      if (!merge_attention_row.row(isa)) continue;
      Context context({.num_threads = 2, .isa = isa});
      Data result{test::GuardedBuffer<BFloat16>(std::size_t(rows * dim)),
                  test::GuardedBuffer<float>(std::size_t(rows * 8)), test::GuardedBuffer<float>(std::size_t(rows * 8))};
      ring_attention_update(context, parts, out_view(result.out.data()), sum_view(result.max.data()),
                            sum_view(result.sum.data()));
      for (std::int64_t row = 0; row < rows; ++row) {
        const std::int64_t b = row / (heads * len), h = row / len % heads, s = row % len;
        const std::size_t at = std::size_t(((s * batch + b) * heads + h) * dim), sums_at = std::size_t(row * 8);
        std::vector<std::vector<double>> outs;
        std::vector<double> lses;
        double largest = 0;
        for (const auto& d : data) {
          outs.emplace_back();
          for (int i = 0; i < dim; ++i) outs.back().push_back(double(to_float(d->out[at + std::size_t(i)])));
          lses.push_back(double(d->max[sums_at]) + std::log(double(d->sum[sums_at])));
          largest = std::max(largest, std::abs(double(d->max[sums_at])));
        }
        const reference::MergedRow expected = reference::merge_row(outs, lses);
        const double weight_error = 2 * test::tolerance(1, largest, 0, DType::f32);
        for (int i = 0; i < dim; ++i) {
          const auto d = std::size_t(i);
          ASSERT_NEAR(to_float(result.out[at + d]), expected.out[d],
                      weight_error * expected.magnitude[d] +
                          test::tolerance(num_parts, expected.magnitude[d], expected.out[d], DType::bf16))
              << isa_name(isa) << " row " << row;
        }
        const double lse = double(result.max[sums_at]) + std::log(double(result.sum[sums_at]));
        if (std::isinf(expected.lse)) {
          ASSERT_EQ(lse, expected.lse);
        } else {
          ASSERT_NEAR(lse, expected.lse, weight_error + test::tolerance(num_parts, 1, expected.lse, DType::f32));
        }
      }
    }
  }
}

TEST(RingAttentionUpdate, ErrorsNameTheArgument) {
  Context context({.num_threads = 1});
  std::vector<float> out(6), sums(24);
  const RingAttentionPartial part{
      {out.data(), DType::f32, {3, 2}}, {sums.data(), DType::f32, {3, 8}}, {sums.data(), DType::f32, {3, 8}}};
  const auto message = [&](const TensorView& max, const TensorView& sum) {
    return test::message_of(
        [&] { ring_attention_update(context, std::span(&part, 1), {out.data(), DType::f32, {3, 2}}, max, sum); });
  };
  std::vector<float> other(24);
  EXPECT_NE(
      message({sums.data(), DType::f32, {3}}, {other.data(), DType::f32, {3, 8}}).find("softmax_max must be [3, 8]"),
      std::string::npos);
  EXPECT_NE(message({other.data(), DType::f32, {3, 8}}, {other.data(), DType::f32, {3, 8}}).find("softmax_sum"),
            std::string::npos);
}

}  // namespace
}  // namespace ops_transformer
