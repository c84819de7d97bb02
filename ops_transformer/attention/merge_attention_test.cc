// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/attention/merge_attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "ops_transformer/attention/attention_kernel.h"
#include "ops_transformer/attention/flash_attention.h"
#include "tests/support/guarded_buffer.h"
#include "tests/support/random.h"
#include "tests/support/tolerance.h"

namespace ops_transformer {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

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

TEST(MergeAttention, PartsOfTheKeysGiveAttentionOverAll) {
  test::Random random(2);
  Context context({.num_threads = 2});
  const std::int64_t rows = 67, keys = 100, dim = 12;
  std::vector<float> q(std::size_t(rows * dim)), k(std::size_t(keys * dim)), v(std::size_t(keys * dim));
  for (auto* t : {&q, &k, &v}) test::fill_normal(*t, random);
  const auto attend = [&](std::int64_t first, std::int64_t last) {
    Part part{std::vector<float>(q.size()), std::vector<float>(std::size_t(rows))};
    flash_attention(context, {q.data(), DType::f32, {1, 1, rows, dim}},
                    {k.data() + first * dim, DType::f32, {1, 1, last - first, dim}},
                    {v.data() + first * dim, DType::f32, {1, 1, last - first, dim}},
                    {part.out.data(), DType::f32, {1, 1, rows, dim}},
                    {.lse = TensorView(part.lse.data(), DType::f32, {1, 1, rows})});
    return part;
  };
  const Part all = attend(0, keys), merged = merge(context, {attend(0, 31), attend(31, 31), attend(31, keys)}, rows);
  for (std::size_t i = 0; i < all.out.size(); ++i) EXPECT_NEAR(merged.out[i], all.out[i], 2e-6);
  for (std::size_t i = 0; i < all.lse.size(); ++i) EXPECT_NEAR(merged.lse[i], all.lse[i], 2e-6);
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
