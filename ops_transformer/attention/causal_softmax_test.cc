// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/attention/causal_softmax.h"

#include <gtest/gtest.h>

#include <cmath>

#include "ops_transformer/attention/causal_softmax_kernel.h"
#include "tests/support/guarded_buffer.h"
#include "tests/support/random.h"
#include "tests/support/tolerance.h"

namespace ops_transformer {
namespace {

TEST(CausalSoftmax, MatchesFloat64AtEveryLevel) {
  for (Isa isa : supported_isas()) {
    if (!softmax_row.row(isa)) continue;
    Context context({.num_threads = 2, .isa = isa});
    for (auto [q_len, kv_len] : {std::pair{1, 1}, {1, 70}, {5, 5}, {33, 40}, {7, 3}}) {
      test::Random random(3);
      test::GuardedBuffer<float> scores(std::size_t(2 * q_len * kv_len));
      test::fill_normal(scores, random, 4.0f);
      const std::vector<float> before(scores.begin(), scores.end());
      causal_softmax(context, {scores.data(), DType::f32, {2, q_len, kv_len}}, 0.5f);
      for (int row = 0; row < 2 * q_len; ++row) {
        const int visible = std::max(0, row % q_len + 1 + kv_len - q_len);
        double sum = 0;
        for (int j = 0; j < visible; ++j) sum += std::exp(0.5 * double(before[std::size_t(row * kv_len + j)]));
        for (int j = 0; j < kv_len; ++j) {
          const double score = 0.5 * double(before[std::size_t(row * kv_len + j)]);
          const double expected = j < visible ? std::exp(score) / sum : 0.0;
          // The exponent's own rounding scales with its size.
          const double bound = test::tolerance(visible, expected * (1 + std::abs(score)), expected, DType::f32);
          EXPECT_NEAR(scores[std::size_t(row * kv_len + j)], expected, bound)
              << isa_name(isa) << " row " << row << " key " << j;
        }
      }
    }
  }
}

TEST(CausalSoftmax, NanStaysInItsRow) {
  Context context({.num_threads = 1});
  float scores[] = {1.0f, 2.0f, NAN, 1.0f, 1.0f, 1.0f};
  causal_softmax(context, {scores, DType::f32, {2, 1, 3}}, 1.0f);
  EXPECT_TRUE(std::isnan(scores[0]));
  EXPECT_NEAR(scores[3], 1.0 / 3, 1e-6);
}

TEST(CausalSoftmax, RefusesABadScale) {
  Context context({.num_threads = 1});
  float scores[1] = {};
  EXPECT_THROW(causal_softmax(context, {scores, DType::f32, {1, 1, 1}}, 0.0f), InvalidArgument);
}

}  // namespace
}  // namespace ops_transformer
