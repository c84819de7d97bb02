// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/attention/fused_rope_attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "ops_transformer/attention/attention_kernel.h"
#include "ops_transformer/attention/flash_attention_reference.h"
#include "tests/support/dtype_of.h"
#include "tests/support/guarded_buffer.h"
#include "tests/support/message_of.h"
#include "tests/support/random.h"
#include "tests/support/tolerance.h"

namespace ops_transformer {
namespace {

using test::GuardedBuffer;
using test::kDType;

template <class T>
class FusedRopeAttention : public testing::Test {};
using Types = testing::Types<float, BFloat16, Float16>;
TYPED_TEST_SUITE(FusedRopeAttention, Types);

// A row rotated in float64, by the definition; sizes: the length of the pair each value stands in, since an error of an
// angle is one relative to that.
struct RotatedRow {
  std::vector<double> values, sizes;
};
template <class T>
RotatedRow rotated(const T* x, std::int64_t dim, std::int64_t rotary_dim, RopeStyle style, double position) {
  std::vector<double> row;
  for (std::int64_t d = 0; d < dim; ++d) row.push_back(double(to_float(x[d])));
  RotatedRow result{row, {}};
  std::vector<double>& turned = result.values;
  for (double value : row) result.sizes.push_back(std::abs(value));
  const std::int64_t half = rotary_dim / 2;
  for (std::int64_t i = 0; i < half; ++i) {
    const double angle = position * std::pow(10000.0, -2.0 * double(i) / double(rotary_dim));
    const auto first = std::size_t(style == RopeStyle::half_split ? i : 2 * i);
    const auto second = std::size_t(style == RopeStyle::half_split ? i + half : 2 * i + 1);
    turned[first] = row[first] * std::cos(angle) - row[second] * std::sin(angle);
    turned[second] = row[second] * std::cos(angle) + row[first] * std::sin(angle);
    result.sizes[first] = result.sizes[second] = std::hypot(row[first], row[second]);
  }
  return result;
}

TYPED_TEST(FusedRopeAttention, MatchesFloat64AtEveryLevel) {
  using T = TypeParam;
  struct Shape {
    std::int64_t q_len, kv_len, dim, rotary_dim, value_dim, first_position;
    RopeStyle style;
  };
  constexpr std::int64_t kHeads = 4, kKvHeads = 2, kBatch = 2;
  for (const Shape& s :
       {Shape{70, 70, 32, 32, 24, 0, RopeStyle::half_split}, Shape{1, 90, 20, 12, 20, 0, RopeStyle::interleaved},
        Shape{33, 150, 80, 6, 16, 2000, RopeStyle::half_split}, Shape{5, 40, 17, 2, 3, 100000, RopeStyle::interleaved},
        Shape{3, 20, 768, 768, 8, -10, RopeStyle::half_split}}) {
    test::Random random(7);
    GuardedBuffer<T> q(std::size_t(kBatch * kHeads * s.q_len * s.dim)),
        k(std::size_t(kBatch * kKvHeads * s.kv_len * s.dim)),
        v(std::size_t(kBatch * kKvHeads * s.kv_len * s.value_dim));
    test::fill_normal(q, random);
    test::fill_normal(k, random);
    test::fill_normal(v, random);
    // Sequence 1 stands elsewhere, and its positions jump.
    GuardedBuffer<std::int32_t> positions(std::size_t(kBatch * s.kv_len));
    for (std::int64_t j = 0; j < s.kv_len; ++j) {
      positions[std::size_t(j)] = std::int32_t(s.first_position + j);
      positions[std::size_t(s.kv_len + j)] = std::int32_t(3 * j);
    }
    const RopeTable table({.rotary_dim = s.rotary_dim, .style = s.style});
    const bool causal = s.q_len > 1;
    for (Isa isa : supported_isas()) {
      if (!flash_tiles.row(isa)) continue;
      Context context({.num_threads = 2, .isa = isa});
      GuardedBuffer<T> out(std::size_t(kBatch * kHeads * s.q_len * s.value_dim));
      fused_rope_attention(
          context, {q.data(), kDType<T>, {kBatch, kHeads, s.q_len, s.dim}},
          {k.data(), kDType<T>, {kBatch, kKvHeads, s.kv_len, s.dim}},
          {v.data(), kDType<T>, {kBatch, kKvHeads, s.kv_len, s.value_dim}}, table,
          {out.data(), kDType<T>, {kBatch, kHeads, s.q_len, s.value_dim}},
          {.positions = ConstTensorView(positions.data(), DType::i32, {kBatch, s.kv_len}), .causal = causal});
      // cos and sin are within 1e-6, so that a value is within 2e-6 of its pair's length; bf16 ones are rounded.
      const double rotation_error = 2e-6 + (kDType<T> == DType::bf16 ? test::epsilon(DType::bf16) : 0);
      const double weight_error = kDType<T> == DType::bf16 ? 2 * test::epsilon(DType::bf16) : 0;
      for (std::int64_t b = 0; b < kBatch; ++b) {
        std::vector<RotatedRow> keys;
        for (std::int64_t row = 0; row < kKvHeads * s.kv_len; ++row) {
          keys.push_back(rotated(k.data() + (b * kKvHeads * s.kv_len + row) * s.dim, s.dim, s.rotary_dim, s.style,
                                 positions[std::size_t(b * s.kv_len + row % s.kv_len)]));
        }
        for (std::int64_t h = 0; h < kHeads; ++h) {
          for (std::int64_t i = 0; i < s.q_len; ++i) {
            const std::int64_t row = (b * kHeads + h) * s.q_len + i, kv = h / 2 * s.kv_len;
            const RotatedRow query = rotated(q.data() + row * s.dim, s.dim, s.rotary_dim, s.style,
                                             positions[std::size_t(b * s.kv_len + i + s.kv_len - s.q_len)]);
            const auto expected = reference::attention_row(
                query.values,
                [&](std::int64_t j, std::int64_t d) { return keys[std::size_t(kv + j)].values[std::size_t(d)]; },
                [&](std::int64_t j, std::int64_t d) {
                  return double(to_float(v[std::size_t((b * kKvHeads * s.kv_len + kv + j) * s.value_dim + d)]));
                },
                s.value_dim, reference::visible_keys(i, s.q_len, s.kv_len, s.kv_len, causal ? 0 : s.kv_len), 1,
                [&](std::int64_t j, double dot, double) {
                  const double scale = 1 / std::sqrt(double(s.dim));
                  const std::vector<double>& sizes = keys[std::size_t(kv + j)].sizes;
                  const double magnitude = std::inner_product(sizes.begin(), sizes.end(), query.sizes.begin(), 0.0);
                  return reference::RuledScore{scale * dot, scale * magnitude};
                });
            const double score_error = test::tolerance(double(s.dim), expected.score_magnitude, 0, DType::f32) +
                                       (2 + rotation_error) * rotation_error * expected.score_magnitude;
            for (std::size_t d = 0; d < std::size_t(s.value_dim); ++d) {
              const double magnitude = expected.magnitude[d];
              const double bound = (2 * score_error + weight_error) * magnitude +
                                   test::tolerance(double(s.kv_len), magnitude, expected.out[d], kDType<T>);
              ASSERT_NEAR(to_float(out[std::size_t(row * s.value_dim) + d]), expected.out[d], bound)
                  << isa_name(isa) << " dim " << s.dim << " row " << row << " d " << d;
            }
          }
        }
      }
    }
  }
}

// The rotated keys that a call keeps are rotary_embedding's, in rows of their own or in a cache's slots.
TYPED_TEST(FusedRopeAttention, KeepsRotatedKeys) {
  using T = TypeParam;
  constexpr std::int64_t kHeads = 4, kKvHeads = 2, kBatch = 2, kLen = 300, kQueries = 70, kDim = 24, kPage = 16;
  test::Random random(3);
  GuardedBuffer<T> q(kBatch * kHeads * kQueries * kDim), k(kBatch * kKvHeads * kLen * kDim), v(k.size());
  test::fill_normal(q, random);
  test::fill_normal(k, random);
  test::fill_normal(v, random);
  const RopeTable table({.rotary_dim = 20});
  std::vector<std::int64_t> slots, positions(kLen);
  for (std::int64_t i = 0; i < kBatch * kLen; ++i) slots.push_back(i % 7 == 3 ? -1 : kBatch * kLen - i);
  std::iota(positions.begin(), positions.end(), 0);
  const std::int64_t num_pages = kBatch * kLen / kPage + 1;
  for (Isa isa : supported_isas()) {
    if (!flash_tiles.row(isa)) continue;
    for (bool causal : {false, true}) {
      Context context({.num_threads = 3, .isa = isa});
      GuardedBuffer<T> plain(q.size()), out(q.size()), kept(k.size()), expected(k.size());
      GuardedBuffer<T> pages(std::size_t(num_pages * kKvHeads * kPage * kDim)), untouched(pages.size());
      const auto run = [&](GuardedBuffer<T>& to, FusedRopeAttentionOptions options) {
        options.causal = causal;
        fused_rope_attention(context, {q.data(), kDType<T>, {kBatch, kHeads, kQueries, kDim}},
                             {k.data(), kDType<T>, {kBatch, kKvHeads, kLen, kDim}},
                             {v.data(), kDType<T>, {kBatch, kKvHeads, kLen, kDim}}, table,
                             {to.data(), kDType<T>, {kBatch, kHeads, kQueries, kDim}}, options);
      };
      run(plain, {});
      run(out, {.rotated_k = TensorView(kept.data(), kDType<T>, {kBatch, kKvHeads, kLen, kDim})});
      EXPECT_EQ(std::memcmp(out.data(), plain.data(), out.size() * sizeof(T)), 0);
      run(out,
          {.rotated_k = TensorView(pages.data(), kDType<T>, {num_pages, kKvHeads, kPage, kDim}), .k_slots = slots});
      EXPECT_EQ(std::memcmp(out.data(), plain.data(), out.size() * sizeof(T)), 0);
      for (std::int64_t b = 0; b < kBatch; ++b) {
        const std::int64_t at = b * kKvHeads * kLen * kDim;
        const std::vector<std::int64_t> sizes = {kLen, kKvHeads, kDim}, strides = {kDim, kLen * kDim, 1};
        rotary_embedding(context, {k.data() + at, kDType<T>, sizes, strides}, {positions.data(), DType::i64, {kLen}},
                         table, {expected.data() + at, kDType<T>, sizes, strides});
      }
      EXPECT_EQ(std::memcmp(kept.data(), expected.data(), kept.size() * sizeof(T)), 0) << isa_name(isa);
      for (std::int64_t i = 0; i < kBatch * kLen; ++i) {
        const std::int64_t slot = kBatch * kLen - i;
        for (std::int64_t h = 0; h < kKvHeads; ++h) {
          const std::int64_t row = ((slot / kPage * kKvHeads + h) * kPage + slot % kPage) * kDim;
          const std::int64_t from = ((i / kLen * kKvHeads + h) * kLen + i % kLen) * kDim;
          const T* wanted = i % 7 == 3 ? untouched.data() + row : expected.data() + from;
          ASSERT_EQ(std::memcmp(pages.data() + row, wanted, kDim * sizeof(T)), 0) << isa_name(isa) << " key " << i;
        }
      }
    }
  }
}

TEST(FusedRopeAttentionErrors, NameTheArgument) {
  Context context({.num_threads = 1});
  float x[24] = {}, y[24];
  const RopeTable table({.rotary_dim = 4}), wide({.rotary_dim = 6});
  const TensorView t(x, DType::f32, {1, 1, 3, 4}), shorter(x, DType::f32, {1, 1, 2, 4}),
      out(y, DType::f32, {1, 1, 3, 4});
  std::int64_t positions[3] = {0, 1, std::int64_t{1} << 40};
  const auto message = [&](const TensorView& k, const RopeTable& angles, const FusedRopeAttentionOptions& options) {
    return test::message_of([&] { fused_rope_attention(context, t, k, k, angles, out, options); });
  };
  EXPECT_EQ(message(t, table, {}), "");
  EXPECT_NE(message(shorter, table, {}).find("q_len is 3, must be at most kv_len, 2"), std::string::npos);
  EXPECT_NE(message(t, wide, {}).find("rotary_dim is 6, must be at most head_dim, 4"), std::string::npos);
  EXPECT_NE(message(t, table, {.positions = ConstTensorView(positions, DType::i64, {2})}).find("positions must be [3]"),
            std::string::npos);
  EXPECT_NE(message(t, table, {.positions = ConstTensorView(positions, DType::i64, {3})}).find("1099511627776"),
            std::string::npos);
  EXPECT_NE(message(t, table, {.positions = t}).find("positions must be"), std::string::npos);
  float kept[12];
  const std::int64_t slots[3] = {0, 1, 3};
  EXPECT_NE(message(t, table, {.rotated_k = TensorView(kept, DType::f32, {1, 1, 2, 4})}).find("rotated_k must be"),
            std::string::npos);
  EXPECT_NE(message(t, table, {.rotated_k = TensorView(kept, DType::f32, {1, 1, 3, 4}), .k_slots = slots})
                .find("k_slots[2] is 3, must be -1 or from 0 to 2"),
            std::string::npos);
  EXPECT_NE(message(t, table, {.k_slots = slots}).find("needs rotated_k"), std::string::npos);
}

}  // namespace
}  // namespace ops_transformer
