// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/posembedding/sin_cos_cache.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "ops_transformer/posembedding/rope_kernel.h"
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

constexpr std::int64_t kTokens = 5, kCacheLen = 11, kHalf = 12;

template <class T, class Cached>
void check(Isa isa, const SinCosCacheOptions& options, std::int64_t head_dim) {
  SCOPED_TRACE(testing::Message() << isa_name(isa) << " sections " << options.sections.size() << " interleaved "
                                  << options.interleaved_sections << " head_dim " << head_dim);
  test::Random random(31);
  const std::int64_t rows = options.sections.empty() ? 1 : std::int64_t(options.sections.size());
  GuardedBuffer<T> q(std::size_t(kTokens * 3 * head_dim)), k(std::size_t(kTokens * head_dim)), q_out(q.size());
  GuardedBuffer<Cached> cache(kCacheLen * 2 * kHalf);
  test::fill_normal(q, random);
  test::fill_normal(k, random);
  test::fill_normal(cache, random);
  std::vector<std::int64_t> positions;
  for (std::int64_t i = 0; i < rows * kTokens; ++i) positions.push_back(random.integer(0, int(kCacheLen) - 1));
  const std::vector<T> k_before(k.begin(), k.end());
  const TensorView k_view(k.data(), kDType<T>, {kTokens, 1, head_dim});
  const ConstTensorView at = rows == 1 ? ConstTensorView(positions.data(), DType::i64, {kTokens})
                                       : ConstTensorView(positions.data(), DType::i64, {rows, kTokens});
  Context context({.num_threads = 2, .isa = isa});
  rope_with_sin_cos_cache(context, at, {cache.data(), kDType<Cached>, {kCacheLen, 2 * kHalf}},
                          {q.data(), kDType<T>, {kTokens, 3, head_dim}},
                          {q_out.data(), kDType<T>, {kTokens, 3, head_dim}}, k_view, k_view, options);
  const auto check_head = [&](const T* x, const T* out, std::int64_t token) {
    for (std::int64_t i = 0; i < kHalf; ++i) {
      std::int64_t row = 0;
      if (options.interleaved_sections) {
        for (std::int64_t s : {1, 2}) {
          for (std::int64_t j = s; j < 3 * options.sections[std::size_t(s)]; j += 3) row = j == i ? s : row;
        }
      } else if (!options.sections.empty()) {
        std::int64_t end = 0;
        for (std::size_t s = 0; s < options.sections.size(); ++s) {
          if (i >= end && i < end + options.sections[s]) row = std::int64_t(s);
          end += options.sections[s];
        }
      }
      const Cached* angles = cache.data() + positions[std::size_t(row * kTokens + token)] * 2 * kHalf;
      const double c = to_float(angles[i]), s = to_float(angles[kHalf + i]);
      const bool pairs = options.style == RopeStyle::interleaved;
      const std::int64_t first = pairs ? 2 * i : i, second = pairs ? 2 * i + 1 : i + kHalf;
      const double a = to_float(x[first]), b = to_float(x[second]);
      const double size = std::abs(a) + std::abs(b);
      ASSERT_NEAR(to_float(out[first]), a * c - b * s,
                  test::tolerance(2, size * (std::abs(c) + std::abs(s)), a * c - b * s, kDType<T>));
      ASSERT_NEAR(to_float(out[second]), b * c + a * s,
                  test::tolerance(2, size * (std::abs(c) + std::abs(s)), b * c + a * s, kDType<T>));
    }
    for (std::int64_t i = 2 * kHalf; i < head_dim; ++i) ASSERT_EQ(to_float(out[i]), to_float(x[i]));
  };
  for (std::int64_t token = 0; token < kTokens; ++token) {
    for (std::int64_t head = 0; head < 3; ++head) {
      const std::int64_t offset = (token * 3 + head) * head_dim;
      check_head(q.data() + offset, q_out.data() + offset, token);
    }
    check_head(k_before.data() + token * head_dim, k.data() + token * head_dim, token);
  }
}

TEST(SinCosCache, MatchesDefinitionAtEveryLevel) {
  const std::vector<std::int64_t> three = {4, 3, 5}, turns = {4, 4, 4}, few = {8, 3, 1}, four = {2, 0, 7, 3};
  for (Isa isa : supported_isas()) {
    if (!rope_tokens.row(isa)) continue;
    for (RopeStyle style : {RopeStyle::half_split, RopeStyle::interleaved}) {
      check<float, float>(isa, {.style = style}, 24);
      check<BFloat16, BFloat16>(isa, {.style = style}, 27);
      check<float, Float16>(isa, {.style = style, .sections = three}, 24);
      check<Float16, Float16>(isa, {.style = style, .sections = four}, 30);
      check<float, float>(isa, {.style = style, .sections = turns, .interleaved_sections = true}, 24);
      check<float, float>(isa, {.style = style, .sections = few, .interleaved_sections = true}, 24);
    }
  }
}

// Nothing outside the cache is read.
TEST(SinCosCacheErrors, NameTheArgumentAndWriteNothing) {
  Context context({.num_threads = 1});
  std::vector<float> cache(4 * 8, 1.0f), q(2 * 8, 1.0f), k(2 * 8, 1.0f), q_out(2 * 8, 7.0f), k_out(2 * 8, 7.0f);
  const auto message = [&](const std::vector<std::int64_t>& positions, const SinCosCacheOptions& options = {}) {
    const auto tokens = std::int64_t(2);
    const ConstTensorView at =
        options.sections.empty()
            ? ConstTensorView(positions.data(), DType::i64, {tokens})
            : ConstTensorView(positions.data(), DType::i64, {std::int64_t(positions.size()) / tokens, tokens});
    return message_of([&] {
      rope_with_sin_cos_cache(context, at, {cache.data(), DType::f32, {4, 8}}, {q.data(), DType::f32, {2, 1, 8}},
                              {q_out.data(), DType::f32, {2, 1, 8}}, {k.data(), DType::f32, {2, 1, 8}},
                              {k_out.data(), DType::f32, {2, 1, 8}}, options);
    });
  };
  EXPECT_EQ(message({0, 4}), "rope_with_sin_cos_cache: positions[1] is 4, must be from 0 to 3");
  EXPECT_EQ(message({-1, 0}), "rope_with_sin_cos_cache: positions[0] is -1, must be from 0 to 3");
  const std::vector<std::int64_t> two = {1, 3}, short_of = {1, 2}, one = {4}, bad = {5, -1};
  EXPECT_EQ(message({0, 1, 2, 9}, {.sections = two}),
            "rope_with_sin_cos_cache: positions[1, 1] is 9, must be from 0 to 3");
  EXPECT_NE(message({0, 1, 2, 3}, {.sections = short_of}).find("sections add up to 3"), std::string::npos);
  EXPECT_NE(message({0, 1}, {.sections = one}).find("sections has 1 entries"), std::string::npos);
  EXPECT_NE(message({0, 1, 2, 3}, {.sections = bad}).find("sections[0] is 5"), std::string::npos);
  EXPECT_NE(message({0, 1, 2, 3}, {.sections = two, .interleaved_sections = true}).find("must have 3"),
            std::string::npos);
  EXPECT_EQ(q_out, std::vector<float>(16, 7.0f));
  EXPECT_EQ(k_out, std::vector<float>(16, 7.0f));
  EXPECT_EQ(message({0, 3}), "");
}

}  // namespace
}  // namespace ops_transformer
