// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/attention/alibi_attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "ops_transformer/attention/attention_kernel.h"
#include "ops_transformer/attention/flash_attention_reference.h"
#include "tests/support/guarded_buffer.h"
#include "tests/support/message_of.h"
#include "tests/support/random.h"
#include "tests/support/tolerance.h"

namespace ops_transformer {
namespace {

using test::GuardedBuffer;

TEST(AlibiAttention, MatchesFloat64AtEveryLevel) {
  constexpr std::int64_t kHeads = 6, kDim = 24;
  const double slopes[kHeads] = {1 / 4.0, 1 / 16.0, 1 / 64.0, 1 / 256.0, 1 / 2.0, 1 / 8.0};
  for (auto [q_len, kv_len] : {std::pair<std::int64_t, std::int64_t>{1, 300}, {70, 90}}) {
    test::Random random(5);
    GuardedBuffer<float> q(std::size_t(kHeads * q_len * kDim)), k(std::size_t(2 * kv_len * kDim)), v(k.size());
    for (auto* t : {&q, &k, &v}) test::fill_normal(*t, random);
    for (Isa isa : supported_isas()) {
      if (!flash_tiles.row(isa)) continue;
      for (bool causal : {false, true}) {
        Context context({.num_threads = 2, .isa = isa});
        GuardedBuffer<float> out(q.size());
        alibi_attention(context, {q.data(), DType::f32, {1, kHeads, q_len, kDim}},
                        {k.data(), DType::f32, {1, 2, kv_len, kDim}}, {v.data(), DType::f32, {1, 2, kv_len, kDim}},
                        {out.data(), DType::f32, {1, kHeads, q_len, kDim}}, {.max_seq_len = kv_len, .causal = causal});
        for (std::int64_t h = 0; h < kHeads; ++h) {
          for (std::int64_t i = 0; i < q_len; ++i) {
            const float* row = q.data() + (h * q_len + i) * kDim;
            const std::int64_t kv = h / 3 * kv_len;
            const auto expected = reference::attention_row(
                {row, row + kDim},
                [&](std::int64_t j, std::int64_t d) { return double(k[std::size_t((kv + j) * kDim + d)]); },
                [&](std::int64_t j, std::int64_t d) { return double(v[std::size_t((kv + j) * kDim + d)]); }, kDim,
                reference::visible_keys(i, q_len, kv_len, kv_len, causal ? 0 : kv_len), 1,
                [&](std::int64_t j, double dot, double magnitude) {
                  const double scale = 1 / std::sqrt(double(kDim));
                  const double bias = slopes[h] * double(std::abs(i + kv_len - q_len - j));
                  return reference::RuledScore{scale * dot - bias, scale * magnitude + bias};
                });
            const double score_error = test::tolerance(kDim, expected.score_magnitude, 0, DType::f32);
            for (std::size_t d = 0; d < std::size_t(kDim); ++d) {
              const double magnitude = expected.magnitude[d];
              ASSERT_NEAR(
                  out[std::size_t((h * q_len + i) * kDim) + d], expected.out[d],
                  2 * score_error * magnitude + test::tolerance(double(kv_len), magnitude, expected.out[d], DType::f32))
                  << isa_name(isa) << " head " << h << " query " << i;
            }
          }
        }
      }
    }
  }
}

TEST(AlibiAttention, LengthsOverTheLimitAreErrors) {
  Context context({.num_threads = 1});
  float x[12] = {}, y[12];
  const TensorView t(x, DType::f32, {1, 1, 3, 4}), out(y, DType::f32, {1, 1, 3, 4});
  const auto message = [&](std::int64_t limit) {
    return test::message_of([&] { alibi_attention(context, t, t, t, out, {.max_seq_len = limit}); });
  };
  EXPECT_EQ(message(3), "");
  EXPECT_NE(message(2).find("q_len is 3, must be at most max_seq_len, 2"), std::string::npos);
  EXPECT_NE(message(0).find("max_seq_len is 0"), std::string::npos);
}

}  // namespace
}  // namespace ops_transformer
