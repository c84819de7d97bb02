// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/posembedding/alibi.h"

#include <gtest/gtest.h>

#include <vector>

namespace ops_transformer {
namespace {

// Counts that are no power of two.
TEST(AlibiSlopes, AreThoseOfThePaper) {
  const auto expect = [](std::size_t num_heads, const std::vector<float>& slopes) {
    std::vector<float> got(num_heads);
    alibi_slopes(got);
    for (std::size_t h = 0; h < num_heads; ++h) EXPECT_NEAR(got[h], slopes[h], 1e-6) << num_heads << " " << h;
  };
  expect(1, {0x1p-8f});
  expect(3, {1 / 16.0f, 1 / 256.0f, 1 / 4.0f});
  expect(6, {1 / 4.0f, 1 / 16.0f, 1 / 64.0f, 1 / 256.0f, 1 / 2.0f, 1 / 8.0f});
  expect(12, {0x1p-1f, 0x1p-2f, 0x1p-3f, 0x1p-4f, 0x1p-5f, 0x1p-6f, 0x1p-7f, 0x1p-8f, 0.707107f, 0.353553f, 0.176777f,
              0.088388f});
}

}  // namespace
}  // namespace ops_transformer
