// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/kv_cache/kv_pool.h"

#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <numeric>
#include <set>
#include <vector>

#include "ops_transformer/base/error.h"
#include "ops_transformer/kv_cache/kv_write.h"
#include "tests/support/guarded_buffer.h"
#include "tests/support/message_of.h"
#include "tests/support/random.h"

namespace ops_transformer {
namespace {

using test::GuardedBuffer;
using test::message_of;

KvPoolOptions small_pool(std::int64_t num_pages, DType dtype = DType::f32) {
  return {.num_layers = 2,
          .num_kv_heads = 2,
          .head_dim = 5,
          .value_dim = 3,
          .page_size = 4,
          .num_pages = num_pages,
          .dtype = dtype};
}

// Appends n tokens whose rows hold `value` + token index + 100 * layer.
void append_tokens(Context& context, KvPool& pool, SequenceId id, std::int64_t n, float value) {
  std::vector<std::int64_t> slots(std::size_t(n), -7);
  const std::int64_t first = pool.length(id);
  pool.append(id, slots);
  const auto& o = pool.options();
  for (std::int64_t layer = 0; layer < o.num_layers; ++layer) {
    std::vector<float> k(std::size_t(n * o.num_kv_heads * o.head_dim)),
        v(std::size_t(n * o.num_kv_heads * o.value_dim));
    for (std::size_t i = 0; i < k.size(); ++i) {
      k[i] = value + float(first + std::int64_t(i) / (o.num_kv_heads * o.head_dim)) + 100 * float(layer);
    }
    for (std::size_t i = 0; i < v.size(); ++i) {
      v[i] = -value - float(first + std::int64_t(i) / (o.num_kv_heads * o.value_dim)) - 100 * float(layer);
    }
    kv_write(context, {k.data(), DType::f32, {n, o.num_kv_heads, o.head_dim}},
             {v.data(), DType::f32, {n, o.num_kv_heads, o.value_dim}}, slots, pool.pages(layer));
  }
}

// First element of each token's key in the layer.
std::vector<float> keys(Context& context, const KvPool& pool, SequenceId id, std::int64_t layer) {
  const auto& o = pool.options();
  const std::int64_t n = pool.length(id);
  GuardedBuffer<float> k(std::size_t(n * o.num_kv_heads * o.head_dim)),
      v(std::size_t(n * o.num_kv_heads * o.value_dim));
  kv_gather(context, pool.view(layer, std::span(&id, 1)), 0, {k.data(), DType::f32, {n, o.num_kv_heads, o.head_dim}},
            {v.data(), DType::f32, {n, o.num_kv_heads, o.value_dim}});
  std::vector<float> result;
  for (std::int64_t t = 0; t < n; ++t) {
    const float first = k[std::size_t(t * o.num_kv_heads * o.head_dim)];
    for (std::int64_t i = 0; i < o.num_kv_heads * o.head_dim; ++i) {
      EXPECT_EQ(k[std::size_t(t * o.num_kv_heads * o.head_dim + i)], first);
    }
    for (std::int64_t i = 0; i < o.num_kv_heads * o.value_dim; ++i) {
      EXPECT_EQ(v[std::size_t(t * o.num_kv_heads * o.value_dim + i)], -first);
    }
    result.push_back(first);
  }
  return result;
}

std::vector<float> counting(float from, std::size_t n) {
  std::vector<float> values(n);
  std::iota(values.begin(), values.end(), from);
  return values;
}

TEST(KvPool, SequencesGrowShrinkAndGiveBackTheirPages) {
  Context context({.num_threads = 2});
  KvPool pool(small_pool(8));
  const SequenceId a = pool.add_sequence(), b = pool.add_sequence();
  append_tokens(context, pool, a, 3, 10);
  append_tokens(context, pool, b, 9, 50);
  append_tokens(context, pool, a, 6, 10);
  EXPECT_EQ(pool.length(a), 9);
  EXPECT_EQ(pool.num_free_pages(), 2);
  EXPECT_EQ(keys(context, pool, a, 0), counting(10, 9));
  EXPECT_EQ(keys(context, pool, a, 1), counting(110, 9));
  EXPECT_EQ(keys(context, pool, b, 1), counting(150, 9));
  pool.truncate(a, 4);
  EXPECT_EQ(pool.num_free_pages(), 4);
  append_tokens(context, pool, a, 2, 20);
  EXPECT_EQ(keys(context, pool, a, 0), (std::vector<float>{10, 11, 12, 13, 24, 25}));
  pool.remove_sequence(a);
  pool.remove_sequence(b);
  EXPECT_EQ(pool.num_free_pages(), 8);
  EXPECT_THROW(pool.length(a), InvalidArgument);
}

TEST(KvPool, ForkSharesPagesAndCopiesThePartialOneWhenWritten) {
  Context context({.num_threads = 1});
  KvPool pool(small_pool(8));
  const SequenceId a = pool.add_sequence();
  append_tokens(context, pool, a, 6, 10);
  const SequenceId b = pool.fork(a);
  EXPECT_EQ(pool.num_free_pages(), 6);
  append_tokens(context, pool, b, 1, 70);  // copies the second page
  EXPECT_EQ(pool.num_free_pages(), 5);
  append_tokens(context, pool, a, 1, 30);  // alone with its page again: written in place
  EXPECT_EQ(pool.num_free_pages(), 5);
  EXPECT_EQ(keys(context, pool, a, 1), (std::vector<float>{110, 111, 112, 113, 114, 115, 136}));
  EXPECT_EQ(keys(context, pool, b, 1), (std::vector<float>{110, 111, 112, 113, 114, 115, 176}));
  pool.remove_sequence(a);
  EXPECT_EQ(keys(context, pool, b, 0), (std::vector<float>{10, 11, 12, 13, 14, 15, 76}));
  pool.remove_sequence(b);
  EXPECT_EQ(pool.num_free_pages(), 8);
}

TEST(KvPool, TruncatedForkDoesNotWriteIntoSharedTokens) {
  Context context({.num_threads = 1});
  KvPool pool(small_pool(8));
  const SequenceId a = pool.add_sequence();
  append_tokens(context, pool, a, 8, 10);
  const SequenceId b = pool.fork(a);
  pool.truncate(b, 6);
  append_tokens(context, pool, b, 1, 70);
  EXPECT_EQ(keys(context, pool, a, 0), counting(10, 8));
  EXPECT_EQ(keys(context, pool, b, 0), (std::vector<float>{10, 11, 12, 13, 14, 15, 76}));
}

TEST(KvPool, ExhaustionChangesNothing) {
  Context context({.num_threads = 1});
  KvPool pool(small_pool(3));
  const SequenceId a = pool.add_sequence();
  append_tokens(context, pool, a, 6, 10);
  const SequenceId b = pool.fork(a);
  std::vector<std::int64_t> slots(9);
  try {
    pool.append(b, slots);
    FAIL() << "expected ResourceExhausted";
  } catch (const ResourceExhausted& error) {
    EXPECT_NE(std::string(error.what()).find("1 of 3 are free"), std::string::npos) << error.what();
  }
  EXPECT_EQ(pool.length(b), 6);
  EXPECT_EQ(pool.num_free_pages(), 1);
  append_tokens(context, pool, b, 2, 70);
  EXPECT_THROW(pool.reserve(a, 3), ResourceExhausted);
  append_tokens(context, pool, a, 2, 30);
  EXPECT_EQ(keys(context, pool, a, 0), (std::vector<float>{10, 11, 12, 13, 14, 15, 36, 37}));
  EXPECT_EQ(keys(context, pool, b, 0), (std::vector<float>{10, 11, 12, 13, 14, 15, 76, 77}));
}

TEST(KvPool, ReservedRoomIsUsedByLaterAppends) {
  KvPool pool(small_pool(4));
  const SequenceId a = pool.add_sequence(), b = pool.add_sequence();
  pool.reserve(a, 12);
  EXPECT_THROW(pool.reserve(b, 5), ResourceExhausted);
  std::vector<std::int64_t> slots(12);
  pool.append(a, slots);
  EXPECT_EQ(std::set<std::int64_t>(slots.begin(), slots.end()).size(), 12u);
  std::vector<std::int64_t> again(5);
  pool.slots(a, 7, again);
  EXPECT_TRUE(std::equal(again.begin(), again.end(), slots.begin() + 7));
  EXPECT_THROW(pool.slots(a, 8, again), InvalidArgument);
}

TEST(KvPool, RandomOperationsAgreeWithPlainVectors) {
  test::Random random(5);
  Context context({.num_threads = 1});
  KvPool pool(small_pool(24));
  std::vector<std::pair<SequenceId, std::vector<float>>> model;
  for (int step = 0; step < 600; ++step) {
    const std::int64_t action = random.integer(0, 9);
    if (model.empty() || (action == 0 && model.size() < 6)) {
      model.emplace_back(pool.add_sequence(), std::vector<float>{});
      continue;
    }
    const std::size_t which = std::size_t(random.integer(0, std::int64_t(model.size()) - 1));
    auto& [id, tokens] = model[which];
    if (action == 1) {
      pool.remove_sequence(id);
      model.erase(model.begin() + std::ptrdiff_t(which));
    } else if (action == 2 && model.size() < 6) {
      const auto copy = tokens;
      const SequenceId forked = pool.fork(id);
      model.emplace_back(forked, copy);
    } else if (action == 3) {
      const std::int64_t length = random.integer(0, std::int64_t(tokens.size()));
      pool.truncate(id, length);
      tokens.resize(std::size_t(length));
    } else {
      const std::int64_t n = random.integer(1, 7);
      const float value = float(random.integer(0, 50));
      const std::int64_t first = pool.length(id);
      try {
        append_tokens(context, pool, id, n, value);
        for (std::int64_t i = 0; i < n; ++i) tokens.push_back(value + float(first + i));
      } catch (const ResourceExhausted&) {
      }
    }
    for (const auto& [each, expected] : model) ASSERT_EQ(keys(context, pool, each, 0), expected) << "step " << step;
  }
  for (const auto& entry : model) pool.remove_sequence(entry.first);
  EXPECT_EQ(pool.num_free_pages(), 24);
}

// Each option is in range, and all together have more bytes than there are addresses.
TEST(KvPool, SizesThatWrapAreRefused) {
  constexpr std::int64_t kMega = 1 << 20, kMost = std::numeric_limits<std::int32_t>::max();
  const KvPoolOptions wraps_to_nothing{
      .num_layers = 1, .num_kv_heads = kMega, .head_dim = 4, .page_size = kMega, .num_pages = kMega};
  EXPECT_EQ(message_of([&] { KvPool pool(wraps_to_nothing); }),
            "kv_pool: 1 layers x 1048576 pages x 1048576 tokens x 1048576 heads x 4 + 4 bf16 must have less than 2^63 "
            "bytes");
  for (auto [layers, heads, dim, pages] :
       {std::array{std::int64_t{1}, kMost, kMost, kMost},
        {kMost, kMost, std::int64_t{1}, kMost},
        {std::int64_t{1}, std::int64_t{1} << 30, std::int64_t{1}, std::int64_t{1} << 30},
        {kMost, kMost, kMost, kMost}}) {
    EXPECT_THROW(
        KvPool::required_bytes(
            {.num_layers = layers, .num_kv_heads = heads, .head_dim = dim, .page_size = 4, .num_pages = pages}),
        InvalidArgument);
  }
  EXPECT_EQ(KvPool::required_bytes({.num_layers = 3, .num_kv_heads = 1, .head_dim = 1, .page_size = 1, .num_pages = 1}),
            std::size_t{3} * 128);
}

TEST(KvPool, OptionsAreChecked) {
  auto options = small_pool(4);
  options.page_size = 0;
  EXPECT_THROW(KvPool{options}, InvalidArgument);
  options = small_pool(4);
  options.dtype = DType::s8;
  EXPECT_THROW(KvPool{options}, InvalidArgument);
  options = small_pool(std::int64_t{1} << 30);
  options.num_layers = options.num_kv_heads = 1 << 20;
  EXPECT_THROW(KvPool{options}, InvalidArgument);
  KvPool pool(small_pool(4));
  EXPECT_THROW(pool.pages(2), InvalidArgument);
  EXPECT_THROW(pool.fork(0), InvalidArgument);
}

}  // namespace
}  // namespace ops_transformer
