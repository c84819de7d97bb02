// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/kv_cache/kv_write.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "ops_transformer/base/error.h"
#include "ops_transformer/kv_cache/kv_write_kernel.h"
#include "tests/support/dtype_of.h"
#include "tests/support/guarded_buffer.h"
#include "tests/support/message_of.h"
#include "tests/support/random.h"

namespace ops_transformer {
namespace {

using test::GuardedBuffer;
using test::kDType;
using test::message_of;

// A cache of one layer in ordinary memory, every bit set.
template <class T>
struct Cache {
  Cache(std::int64_t pages, std::int64_t heads, std::int64_t page_size, std::int64_t dim, std::int64_t value_dim)
      : k(std::size_t(pages * heads * page_size * dim)),
        v(std::size_t(pages * heads * page_size * value_dim)),
        view{TensorView(k.data(), kDType<T>, {pages, heads, page_size, dim}),
             TensorView(v.data(), kDType<T>, {pages, heads, page_size, value_dim})} {}
  GuardedBuffer<T> k, v;
  KvPages view;
};

template <class Source, class T>
void round_trip(Isa isa, std::int64_t dim) {
  SCOPED_TRACE(std::string(isa_name(isa)) + " dim " + std::to_string(dim));
  test::Random random(3);
  Context context({.num_threads = 3, .isa = isa});
  const std::int64_t tokens = 37, heads = 3, value_dim = dim + 2, stride = heads * dim + 5;
  Cache<T> cache(5, heads, 8, dim, value_dim);
  GuardedBuffer<Source> k(std::size_t((tokens - 1) * stride + heads * dim)), v(std::size_t(tokens * heads * value_dim));
  test::fill_normal(k, random);
  test::fill_normal(v, random);
  std::vector<std::int64_t> slots;
  const std::int32_t table[5] = {4, 0, 3, 1, 2};
  for (std::int64_t t = 0; t < tokens; ++t) slots.push_back(table[t / 8] * 8 + t % 8);
  kv_write(context, {k.data(), kDType<Source>, {tokens, heads, dim}, {stride, dim, 1}},
           {v.data(), kDType<Source>, {tokens, heads, value_dim}}, slots, cache.view);
  GuardedBuffer<float> k_back(std::size_t(tokens * heads * dim)), v_back(std::size_t(tokens * heads * value_dim));
  const std::int64_t length = tokens;
  const auto view =
      PagedKvView::from_arrays(cache.view.k, cache.view.v, {table, DType::i32, {1, 5}}, {&length, DType::i64, {1}});
  kv_gather(context, view, 0, {k_back.data(), DType::f32, {tokens, heads, dim}},
            {v_back.data(), DType::f32, {tokens, heads, value_dim}});
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t i = 0; i < heads * dim; ++i) {
      const float expected = to_float(test::from_float<T>(to_float(k[std::size_t(t * stride + i)])));
      ASSERT_EQ(k_back[std::size_t(t * heads * dim + i)], expected);
    }
    for (std::int64_t i = 0; i < heads * value_dim; ++i) {
      const std::size_t at = std::size_t(t * heads * value_dim + i);
      ASSERT_EQ(v_back[at], to_float(test::from_float<T>(to_float(v[at]))));
    }
  }
}

TEST(KvWrite, RoundTripsAtEveryLevelAndDtype) {
  for (Isa isa : supported_isas()) {
    if (!kv_copy_token.row(isa)) continue;
    for (std::int64_t dim : {1, 7, 16, 33, 64, 80}) {
      round_trip<float, float>(isa, dim);
      round_trip<float, BFloat16>(isa, dim);
      round_trip<BFloat16, float>(isa, dim);
      round_trip<BFloat16, BFloat16>(isa, dim);
    }
  }
}

// A padded row reaches no slot, not even slot 0.
TEST(KvWrite, SkippedRowsChangeNothing) {
  Context context({.num_threads = 2});
  Cache<float> cache(2, 1, 4, 2, 2);
  std::memset(cache.k.data(), 0x3f, cache.k.size() * sizeof(float));
  std::memset(cache.v.data(), 0x3f, cache.v.size() * sizeof(float));
  const float untouched = cache.k[0], nan = std::numeric_limits<float>::quiet_NaN();
  const float rows[6] = {1, 2, nan, nan, 5, 6};
  const ConstTensorView view(rows, DType::f32, {3, 1, 2});
  kv_write(context, view, view, std::vector<std::int64_t>{5, -1, 6}, cache.view);
  for (std::size_t slot = 0; slot < 8; ++slot) {
    const bool written = slot == 5 || slot == 6;
    for (std::size_t i = 0; i < 2; ++i) {
      const float expected = !written ? untouched : float(slot == 5 ? 1 + i : 5 + i);
      EXPECT_EQ(cache.k[slot * 2 + i], expected);
      EXPECT_EQ(cache.v[slot * 2 + i], expected);
    }
  }
}

TEST(KvWrite, WritesACacheInSlotMajorLayout) {
  Context context({.num_threads = 1});
  std::vector<float> memory(2 * 4 * 3 * 2, 0.0f);  // [page, slot, head, dim]
  const TensorView pages(memory.data(), DType::f32, {2, 3, 4, 2}, {24, 2, 6, 1});
  std::vector<float> v_memory(memory.size());
  const TensorView v_pages(v_memory.data(), DType::f32, {2, 3, 4, 2}, {24, 2, 6, 1});
  float rows[6] = {1, 2, 3, 4, 5, 6};
  const ConstTensorView view(rows, DType::f32, {1, 3, 2});
  kv_write(context, view, view, std::vector<std::int64_t>{6}, {pages, v_pages});
  for (std::size_t i = 0; i < 6; ++i) EXPECT_EQ(memory[36 + i], float(i + 1));
}

TEST(KvWrite, BadSlotsAreNamedBeforeAnythingIsWritten) {
  Context context({.num_threads = 1});
  Cache<float> cache(2, 1, 4, 2, 2);
  std::memset(cache.k.data(), 0, cache.k.size() * sizeof(float));
  const float rows[4] = {1, 2, 3, 4};
  const ConstTensorView view(rows, DType::f32, {2, 1, 2});
  for (std::int64_t bad : {std::int64_t{8}, std::int64_t{-2}, std::numeric_limits<std::int64_t>::max()}) {
    const auto message =
        message_of([&] { kv_write(context, view, view, std::vector<std::int64_t>{0, bad}, cache.view); });
    EXPECT_NE(message.find("slots[1] is " + std::to_string(bad)), std::string::npos) << message;
  }
  EXPECT_EQ(cache.k[0], 0.0f);
  EXPECT_NE(message_of([&] { kv_write(context, view, view, std::vector<std::int64_t>{0}, cache.view); }), "");
}

// Threads must not write to one place: neither gathered rows nor pages may be broadcast.
TEST(KvWrite, OutputsWhoseElementsShareMemoryAreRefused) {
  Context context({.num_threads = 1});
  Cache<float> cache(2, 1, 4, 2, 2);
  std::memset(cache.k.data(), 0, cache.k.size() * sizeof(float));
  std::memset(cache.v.data(), 0, cache.v.size() * sizeof(float));
  const std::int32_t pages[1] = {0};
  const PagedKvView paged{cache.view.k, cache.view.v, {{pages, 1, 3}}};
  float k[6] = {}, v[6] = {};
  const TensorView good(k, DType::f32, {3, 1, 2}), broadcast(v, DType::f32, {3, 1, 2}, {0, 2, 1});
  EXPECT_NE(message_of([&] { kv_gather(context, paged, 0, good, broadcast); }).find("v_out has stride 0"),
            std::string::npos);
  const KvPages one_page{TensorView(k, DType::f32, {9, 1, 2, 2}, {0, 4, 2, 1}), cache.view.v};
  const ConstTensorView row(v, DType::f32, {1, 1, 2});
  EXPECT_NE(message_of([&] { kv_write(context, row, row, std::vector<std::int64_t>{0}, one_page); }), "");
}

// A page id outside the pool, in entries that are needed and in one that is not.
TEST(PagedKvView, PageTableIsChecked) {
  Context context({.num_threads = 1});
  Cache<float> cache(4, 1, 16, 2, 2);
  GuardedBuffer<float> k(17 * 2), v(17 * 2);
  const auto gather = [&](std::int32_t second, std::int64_t length) {
    const std::int32_t table[2] = {0, second};
    return message_of([&] {
      const auto view =
          PagedKvView::from_arrays(cache.view.k, cache.view.v, {table, DType::i32, {1, 2}}, {&length, DType::i64, {1}});
      kv_gather(context, view, 0, {k.data(), DType::f32, {length, 1, 2}}, {v.data(), DType::f32, {length, 1, 2}});
    });
  };
  EXPECT_EQ(gather(4, 17), "kv_gather: page_table[0][1] (batch 0, slot 1) is 4, must be from 0 to 3");
  EXPECT_EQ(gather(-1, 17), "kv_gather: page_table[0][1] (batch 0, slot 1) is -1, must be from 0 to 3");
  EXPECT_EQ(gather(4, 16), "");
  EXPECT_EQ(gather(-1, 16), "");
  EXPECT_EQ(gather(-1, 0), "");
  EXPECT_NE(gather(1, 33).find("needs 3 pages of 16, page_table has 2"), std::string::npos);
  EXPECT_NE(gather(1, -1).find("kv_lens[0] is -1"), std::string::npos);
  EXPECT_NE(gather(1, std::numeric_limits<std::int64_t>::max()).find("page_table has 2"), std::string::npos);
}

}  // namespace
}  // namespace ops_transformer
