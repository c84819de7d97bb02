// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/attention/ops_transformer_flash_attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ops_transformer/attention/flash_attention.h"
#include "tests/support/random.h"

namespace ops_transformer {
namespace {

TEST(FlashAttentionC, IsTheOperatorWithAnyBlockSize) {
  test::Random random(5);
  for (const auto& [n, d] : {std::pair{1, 1}, {5, 3}, {300, 64}, {257, 128}}) {
    const auto size = std::size_t(n) * std::size_t(d);
    std::vector<float> q(size), k(size), v(size), expected(size);
    for (auto* values : {&q, &k, &v}) {
      for (float& value : *values) value = random.normal();
    }
    const auto head = [&](const std::vector<float>& values) {
      return ConstTensorView(values.data(), DType::f32, {1, 1, n, d});
    };
    Context context;
    flash_attention(context, head(q), head(k), head(v), TensorView(expected.data(), DType::f32, {1, 1, n, d}));
    for (int block_size : {0, 1, 16, 100, 128, 1 << 30}) {
      std::vector<float> out(size, NAN);
      ASSERT_EQ(flash_attention_blocked(q.data(), k.data(), v.data(), out.data(), n, d, block_size), OPS_TRANSFORMER_OK)
          << ops_transformer_last_error();
      // Both are the mean of values around 1, within the order of 300 additions.
      for (std::size_t i = 0; i < size; ++i) ASSERT_NEAR(out[i], expected[i], 1e-5f) << n << " " << d << " " << i;
    }
  }
}

TEST(FlashAttentionC, SaysWhatIsWrongAndWritesNothing) {
  std::vector<float> x(8, 1.0f), out(8, -1.0f);
  const struct {
    const float* q;
    float* o;
    int n, d, block_size;
    const char* message;
  } cases[] = {{x.data(), out.data(), -1, 4, 0, "N is -1, must be >= 0"},
               {x.data(), out.data(), 2, 0, 0, "D is 0, must be at least 1"},
               {x.data(), out.data(), 2, 4, -7, "block_size is -7, must be >= 0"},
               {nullptr, out.data(), 2, 4, 0, "Q is null"},
               {x.data(), nullptr, 2, 4, 0, "O is null"},
               {x.data(), out.data(), 1, 769, 0, "head_dim is 769"},
               {x.data(), x.data(), 2, 4, 0, "overlap"}};
  for (const auto& [q, o, n, d, block_size, message] : cases) {
    EXPECT_EQ(flash_attention_blocked(q, x.data(), x.data(), o, n, d, block_size), OPS_TRANSFORMER_INVALID_ARGUMENT);
    EXPECT_NE(std::string(ops_transformer_last_error()).find(message), std::string::npos)
        << ops_transformer_last_error();
  }
  EXPECT_EQ(out, std::vector<float>(8, -1.0f));
  EXPECT_EQ(x, std::vector<float>(8, 1.0f));
  EXPECT_EQ(flash_attention_blocked(nullptr, nullptr, nullptr, nullptr, 0, 4, 0), OPS_TRANSFORMER_OK);
  // Each thread has its own message.
  std::thread([] { EXPECT_STREQ(ops_transformer_last_error(), ""); }).join();
}

}  // namespace
}  // namespace ops_transformer
