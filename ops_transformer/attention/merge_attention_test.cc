// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/attention/merge_attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <tuple>
#include <vector>

#include "ops_transformer/attention/attention_kernel.h"
#include "ops_transformer/attention/merge_attention_reference.h"
#include "tests/support/dtype_of.h"
#include "tests/support/guarded_buffer.h"
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
  merge_attention(context, views, {result.out.data(), DType::f32, {rows, std::int64_t(result.out.size()) / rows}},
                  TensorView(result.lse.data(), DType::f32, {rows}));
  return result;
}

// Case 25.
TEST(MergeAttention, EmptyPartsChangeNothing) {
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

// Case 26: natural logarithms.
TEST(MergeAttention, WeighsByNaturalLogarithms) {
  for (Isa isa : supported_isas()) {
    if (!merge_attention_row.row(isa)) continue;
    Context context({.num_threads = 1, .isa = isa});
    const Part r = merge(context, {{{1}, {0}}, {{4}, {0.693147181f}}});
    EXPECT_NEAR(r.out[0], 3.0f, 1e-6);
    EXPECT_NEAR(r.lse[0], 1.098612f, 1e-6);
  }
}

// A part that went wrong shows in the result, wherever it stands among the others.
TEST(MergeAttention, NanIsNeverLost) {
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
class MergeAttentionOf : public testing::Test {};
using Types = testing::Types<float, BFloat16, Float16>;
TYPED_TEST_SUITE(MergeAttentionOf, Types);

TYPED_TEST(MergeAttentionOf, MatchesFloat64) {
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
      merge_attention(context, parts, {out.data(), test::kDType<T>, {rows, dim}},
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

TEST(MergeAttention, MayWriteOverAPart) {
  Context context({.num_threads = 1});
  std::vector<BFloat16> a = {to_bfloat16(1), to_bfloat16(2)}, b = {to_bfloat16(3), to_bfloat16(6)};
  std::vector<float> lse_a = {0, 0}, lse_b = {0, 0};
  const TensorView out(a.data(), DType::bf16, {2, 1}), lse(lse_a.data(), DType::f32, {2});
  const AttentionPartial parts[2] = {{out, lse}, {{b.data(), DType::bf16, {2, 1}}, {lse_b.data(), DType::f32, {2}}}};
  merge_attention(context, parts, out, lse);
  EXPECT_EQ(to_float(a[0]), 2.0f);
  EXPECT_EQ(to_float(a[1]), 4.0f);
  EXPECT_NEAR(lse_a[0], 0.693147f, 1e-6);
}

TEST(MergeAttention, ErrorsNameThePart) {
  Context context({.num_threads = 1});
  const Part part{{1, 2}, {0}};
  std::vector<float> out(3);
  const AttentionPartial view = part.view(1);
  try {
    merge_attention(context, std::span(&view, 1), {out.data(), DType::f32, {1, 3}});
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("parts[0].out must be [1, 3]"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace ops_transformer
