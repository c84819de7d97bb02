// SPDX-License-Identifier: Apache-2.0
// The paged face, and what deterministic mode promises: the same bits for any threads, chunking and neighbours.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "ops_transformer/attention/attention_kernel.h"
#include "ops_transformer/attention/flash_attention.h"
#include "ops_transformer/kv_cache/kv_pool.h"
#include "ops_transformer/kv_cache/kv_write.h"
#include "tests/support/guarded_buffer.h"
#include "tests/support/message_of.h"
#include "tests/support/random.h"

namespace ops_transformer {
namespace {

using test::GuardedBuffer;
using test::message_of;

constexpr std::int64_t kHeads = 6, kKvHeads = 2, kDim = 20;

// Tokens of one sequence, ready to be put into a cache.
struct Tokens {
  Tokens(std::int64_t n, std::uint64_t seed)
      : len(n), q(std::size_t(n * kHeads * kDim)), k(std::size_t(n * kKvHeads * kDim)), v(k.size()) {
    test::Random random(seed);
    for (auto* t : {&q, &k, &v}) test::fill_normal(*t, random);
  }
  std::int64_t len;
  std::vector<float> q, k, v;
};

KvPoolOptions pool_options(std::int64_t page_size, DType dtype) {
  return {.num_layers = 1,
          .num_kv_heads = kKvHeads,
          .head_dim = kDim,
          .page_size = page_size,
          .num_pages = 4096 / page_size,
          .dtype = dtype};
}

void append(Context& context, KvPool& pool, SequenceId id, const Tokens& tokens, std::int64_t first, std::int64_t n) {
  std::vector<std::int64_t> slots(static_cast<std::size_t>(n));
  pool.append(id, slots);
  const std::int64_t row = kKvHeads * kDim;
  kv_write(context, {tokens.k.data() + first * row, DType::f32, {n, kKvHeads, kDim}},
           {tokens.v.data() + first * row, DType::f32, {n, kKvHeads, kDim}}, slots, pool.pages(0));
}

// One step over several sequences: the queries of tokens [first, first + n) of each, whose keys are in the cache.
struct Step {
  SequenceId id;
  const Tokens* tokens;
  std::int64_t first, n;
};
std::vector<float> attend(Context& context, const KvPool& pool, const std::vector<Step>& steps,
                          const FlashAttentionOptions& options = {.mask = Mask::causal}) {
  std::vector<std::int64_t> offsets = {0};
  std::vector<SequenceId> ids;
  std::vector<float> q;
  for (const Step& s : steps) {
    offsets.push_back(offsets.back() + s.n);
    ids.push_back(s.id);
    q.insert(q.end(), s.tokens->q.begin() + s.first * kHeads * kDim,
             s.tokens->q.begin() + (s.first + s.n) * kHeads * kDim);
  }
  GuardedBuffer<float> out(q.size());
  flash_attention_paged(context, {q.data(), DType::f32, {offsets.back(), kHeads, kDim}}, pool.view(0, ids),
                        {out.data(), DType::f32, {offsets.back(), kHeads, kDim}}, offsets, options);
  return {out.begin(), out.end()};
}

std::vector<float> in_chunks(Context& context, const KvPoolOptions& options, const Tokens& tokens, std::int64_t chunk,
                             const FlashAttentionOptions& attention) {
  KvPool pool(options);
  const SequenceId id = pool.add_sequence();
  std::vector<float> all;
  for (std::int64_t first = 0; first < tokens.len; first += chunk) {
    const std::int64_t n = std::min(chunk, tokens.len - first);
    append(context, pool, id, tokens, first, n);
    const auto part = attend(context, pool, {{id, &tokens, first, n}}, attention);
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

// The promise of deterministic mode.
TEST(AttentionDeterminism, BitsDependOnNeitherThreadsNorChunksNorPages) {
  const Tokens tokens(203, 1);
  for (Isa isa : supported_isas()) {
    if (!flash_tiles.row(isa)) continue;
    for (DType dtype : {DType::f32, DType::bf16}) {
      for (std::int64_t window : {kNoWindow, std::int64_t{37}}) {
        SCOPED_TRACE(testing::Message() << isa_name(isa) << " " << dtype_name(dtype) << " window " << window);
        const FlashAttentionOptions options{.mask = Mask::causal, .window = window};
        Context one({.num_threads = 1, .deterministic = true, .isa = isa});
        const auto expected = in_chunks(one, pool_options(64, dtype), tokens, tokens.len, options);
        for (int num_threads : {2, 3, 8}) {
          Context context({.num_threads = num_threads, .deterministic = true, .isa = isa});
          for (std::int64_t chunk : {1, 2, 16, 61, 64, 203}) {
            EXPECT_EQ(in_chunks(context, pool_options(chunk % 2 ? 64 : 7, dtype), tokens, chunk, options), expected)
                << num_threads << " threads, chunks of " << chunk;
          }
        }
      }
    }
  }
}

TEST(AttentionDeterminism, BitsDoNotDependOnNeighbours) {
  const Tokens a(150, 1), b(70, 2), c(333, 3);
  for (DType dtype : {DType::f32, DType::bf16}) {
    Context context({.num_threads = 3, .deterministic = true});
    KvPool pool(pool_options(16, dtype));
    const SequenceId ia = pool.add_sequence(), ib = pool.add_sequence(), ic = pool.add_sequence();
    append(context, pool, ib, b, 0, 40);  // pages of the sequences alternate
    append(context, pool, ia, a, 0, 150);
    append(context, pool, ic, c, 0, 333);
    append(context, pool, ib, b, 40, 30);
    const auto alone_a = attend(context, pool, {{ia, &a, 149, 1}});
    const auto alone_b = attend(context, pool, {{ib, &b, 10, 60}});
    const auto alone_c = attend(context, pool, {{ic, &c, 0, 333}});
    std::vector<float> expected = alone_b;
    expected.insert(expected.end(), alone_a.begin(), alone_a.end());
    expected.insert(expected.end(), alone_c.begin(), alone_c.end());
    EXPECT_EQ(attend(context, pool, {{ib, &b, 10, 60}, {ia, &a, 149, 1}, {ic, &c, 0, 333}}), expected);
  }
}

TEST(AttentionDeterminism, LongDecodeIsTheSameForAnyThreads) {
  const Tokens tokens(4000, 5);
  for (DType dtype : {DType::f32, DType::bf16}) {
    std::vector<float> expected;
    for (int num_threads : {1, 2, 3, 8}) {
      Context context({.num_threads = num_threads, .deterministic = true});
      KvPool pool(pool_options(64, dtype));
      const SequenceId id = pool.add_sequence();
      append(context, pool, id, tokens, 0, tokens.len);
      const auto out = attend(context, pool, {{id, &tokens, tokens.len - 1, 1}});
      if (num_threads == 1) expected = out;
      EXPECT_EQ(out, expected);
    }
  }
}

// Pages in any order, one shared by two sequences, against attention over the gathered keys.
TEST(PagedAttention, EqualsAttentionOverGatheredKeys) {
  for (Isa isa : supported_isas()) {
    if (!flash_tiles.row(isa)) continue;
    for (bool deterministic : {false, true}) {
      SCOPED_TRACE(testing::Message() << isa_name(isa) << " deterministic " << deterministic);
      Context context({.num_threads = 2, .deterministic = deterministic, .isa = isa});
      test::Random random(8);
      constexpr std::int64_t kPages = 3, kPageSize = 4;
      GuardedBuffer<float> k(kPages * kKvHeads * kPageSize * kDim), v(k.size());
      test::fill_normal(k, random);
      test::fill_normal(v, random);
      const std::vector<float> before(k.begin(), k.end());
      const std::int32_t table[2][3] = {{2, 0, 1}, {0, -1, -1}};
      const std::int32_t lens[2] = {9, 3};
      const TensorView k_pages(k.data(), DType::f32, {kPages, kKvHeads, kPageSize, kDim}),
          v_pages(v.data(), DType::f32, {kPages, kKvHeads, kPageSize, kDim});
      const auto view =
          PagedKvView::from_arrays(k_pages, v_pages, {table, DType::i32, {2, 3}}, {lens, DType::i32, {2}});
      const Tokens tokens(4, 3);
      const std::vector<std::int64_t> offsets = {0, 3, 4};
      GuardedBuffer<float> out(4 * kHeads * kDim);
      flash_attention_paged(context, {tokens.q.data(), DType::f32, {4, kHeads, kDim}}, view,
                            {out.data(), DType::f32, {4, kHeads, kDim}}, offsets, {.mask = Mask::causal});
      for (std::size_t b = 0; b < 2; ++b) {
        const std::int64_t len = lens[b], q_len = offsets[b + 1] - offsets[b];
        GuardedBuffer<float> k_rows(std::size_t(len * kKvHeads * kDim)), v_rows(k_rows.size()),
            expected(std::size_t(q_len * kHeads * kDim));
        kv_gather(context, view, b, {k_rows.data(), DType::f32, {len, kKvHeads, kDim}},
                  {v_rows.data(), DType::f32, {len, kKvHeads, kDim}});
        const std::vector<std::int64_t> q_range = {0, q_len}, kv_range = {0, len};
        flash_attention_varlen(
            context, {tokens.q.data() + offsets[b] * kHeads * kDim, DType::f32, {q_len, kHeads, kDim}},
            {k_rows.data(), DType::f32, {len, kKvHeads, kDim}}, {v_rows.data(), DType::f32, {len, kKvHeads, kDim}},
            {expected.data(), DType::f32, {q_len, kHeads, kDim}}, q_range, kv_range, {.mask = Mask::causal});
        for (std::size_t i = 0; i < expected.size(); ++i) {
          ASSERT_EQ(out[std::size_t(offsets[b] * kHeads * kDim) + i], expected[i]);
        }
      }
      EXPECT_EQ(std::memcmp(before.data(), k.data(), before.size() * sizeof(float)), 0);
    }
  }
}

// f32 queries over a bf16 cache are rounded to bf16, at every level: the same as rounding them first.
TEST(PagedAttention, QueriesOverABf16CacheAreRounded) {
  Tokens tokens(70, 6);
  for (Isa isa : supported_isas()) {
    if (!flash_tiles.row(isa)) continue;
    for (std::int64_t queries : {std::int64_t{1}, std::int64_t{70}}) {
      Context context({.num_threads = 1, .isa = isa});
      KvPool pool(pool_options(16, DType::bf16));
      const SequenceId id = pool.add_sequence();
      append(context, pool, id, tokens, 0, 70);
      const Step step{id, &tokens, 70 - queries, queries};
      const auto out = attend(context, pool, {step});
      Tokens rounded = tokens;
      for (float& x : rounded.q) x = to_float(to_bfloat16(x));
      EXPECT_EQ(attend(context, pool, {{id, &rounded, 70 - queries, queries}}), out) << isa_name(isa);
      std::vector<BFloat16> q;
      for (std::int64_t i = (70 - queries) * kHeads * kDim; i < 70 * kHeads * kDim; ++i) {
        q.push_back(to_bfloat16(tokens.q[std::size_t(i)]));
      }
      std::vector<float> from_bf16(out.size());
      const std::vector<std::int64_t> offsets = {0, queries};
      flash_attention_paged(context, {q.data(), DType::bf16, {queries, kHeads, kDim}}, pool.view(0, std::span(&id, 1)),
                            {from_bf16.data(), DType::f32, {queries, kHeads, kDim}}, offsets, {.mask = Mask::causal});
      EXPECT_EQ(from_bf16, out) << isa_name(isa);
    }
  }
}

// A sequence without keys in a decode batch.
TEST(PagedAttention, SequenceOfLengthZeroLeavesNothingStale) {
  const Tokens tokens(5, 2);
  for (bool deterministic : {false, true}) {
    Context context({.num_threads = 2, .deterministic = deterministic});
    KvPool pool(pool_options(4, DType::f32));
    const SequenceId a = pool.add_sequence(), empty = pool.add_sequence(), c = pool.add_sequence();
    append(context, pool, a, tokens, 0, 5);
    append(context, pool, c, tokens, 0, 3);
    const SequenceId ids[3] = {a, empty, c};
    GuardedBuffer<float> out(3 * kHeads * kDim), lse(3 * kHeads);
    const std::vector<std::int64_t> offsets = {0, 1, 2, 3};
    flash_attention_paged(context, {tokens.q.data(), DType::f32, {3, kHeads, kDim}}, pool.view(0, ids),
                          {out.data(), DType::f32, {3, kHeads, kDim}}, offsets,
                          {.mask = Mask::causal, .lse = TensorView(lse.data(), DType::f32, {3, kHeads})});
    for (std::size_t i = 0; i < out.size(); ++i) {
      if (i / (kHeads * kDim) == 1) {
        EXPECT_EQ(out[i], 0.0f);
      } else {
        EXPECT_TRUE(std::isfinite(out[i]));
      }
    }
    for (std::size_t i = 0; i < lse.size(); ++i) {
      EXPECT_EQ(std::isinf(lse[i]), i / kHeads == 1);
    }
  }
}

TEST(PagedAttention, PageTableIsChecked) {
  Context context({.num_threads = 1});
  std::vector<float> pages(4 * 16 * 2), q(2), out(2);
  const auto call = [&](std::int32_t second, std::int64_t len) -> std::string {
    const std::int32_t table[2] = {0, second};
    const TensorView k(pages.data(), DType::f32, {4, 1, 16, 2});
    const std::vector<std::int64_t> offsets = {0, 1};
    return message_of([&] {
      const auto view = PagedKvView::from_arrays(k, k, {table, DType::i32, {1, 2}}, {&len, DType::i64, {1}});
      flash_attention_paged(context, {q.data(), DType::f32, {1, 1, 2}}, view, {out.data(), DType::f32, {1, 1, 2}},
                            offsets);
    });
  };
  EXPECT_EQ(call(4, 17), "flash_attention_paged: page_table[0][1] (batch 0, slot 1) is 4, must be from 0 to 3");
  EXPECT_EQ(call(-1, 17), "flash_attention_paged: page_table[0][1] (batch 0, slot 1) is -1, must be from 0 to 3");
  EXPECT_EQ(call(4, 16), "");
}

TEST(PagedAttention, SteadyStateNeedsNoMoreWorkspace) {
  const Tokens tokens(300, 7);
  Context context({.num_threads = 2});
  KvPool pool(pool_options(64, DType::bf16));
  const SequenceId id = pool.add_sequence();
  append(context, pool, id, tokens, 0, 300);
  attend(context, pool, {{id, &tokens, 0, 300}});
  const std::size_t once = context.workspace_high_water_bytes();
  for (int i = 0; i < 5; ++i) attend(context, pool, {{id, &tokens, 0, 300}});
  EXPECT_EQ(context.workspace_high_water_bytes(), once);
}

// Three sequences with rules of their own, packed, paged and one by one: prefixes, trees, bias and mask by packed row.
TEST(AttentionPackedRules, AreThoseOfEachSequenceAlone) {
  const std::vector<std::int64_t> q_offsets = {0, 5, 5, 22}, kv_lens = {40, 7, 90};
  const std::int64_t total_q = 22, columns = 96;
  test::Random random(8);
  std::vector<float> bias(std::size_t(kHeads * total_q * columns));
  test::fill_normal(bias, random);
  std::vector<std::uint8_t> visible(std::size_t(total_q * columns));
  for (std::uint8_t& x : visible) x = random.integer(0, 3) != 0;
  const std::vector<std::int64_t> prefixes = {30, 2, 80};
  const std::vector<float> slopes = {0.5f, 0.25f, 0.1f, 0.05f, 0, 1}, sinks = {0, 1, -1, 2, 0.5f, -3};
  FlashAttentionOptions packed{.mask = Mask::causal,
                               .prefix_lens = prefixes,
                               .bias = ConstTensorView(bias.data(), DType::f32, {kHeads, total_q, columns}),
                               .logit_soft_cap = 2,
                               .alibi_slopes = slopes,
                               .sinks = sinks};
  const ConstTensorView mask(visible.data(), DType::boolean, {total_q, columns});
  for (Isa isa : supported_isas()) {
    if (!flash_tiles.row(isa)) continue;
    for (bool tree : {false, true}) {
      SCOPED_TRACE(testing::Message() << isa_name(isa) << " tree " << tree);
      Context context({.num_threads = 2, .deterministic = true, .isa = isa});
      packed.visible = tree ? std::nullopt : std::optional(mask);
      packed.tree = tree ? std::optional(mask) : std::nullopt;
      KvPool pool(pool_options(16, DType::f32));
      std::vector<Tokens> tokens;
      std::vector<Step> steps;
      std::vector<SequenceId> ids;
      for (std::size_t b = 0; b < 3; ++b) tokens.emplace_back(kv_lens[b], 20 + b);
      for (std::size_t b = 0; b < 3; ++b) {
        ids.push_back(pool.add_sequence());
        append(context, pool, ids[b], tokens[b], 0, kv_lens[b]);
        const std::int64_t n = q_offsets[b + 1] - q_offsets[b];
        steps.push_back({ids[b], &tokens[b], kv_lens[b] - n, n});
      }
      const std::vector<float> paged = attend(context, pool, steps, packed);
      std::vector<float> k, v, q;
      std::vector<std::int64_t> kv_offsets = {0};
      for (std::size_t b = 0; b < 3; ++b) {
        k.insert(k.end(), tokens[b].k.begin(), tokens[b].k.end());
        v.insert(v.end(), tokens[b].v.begin(), tokens[b].v.end());
        q.insert(q.end(), tokens[b].q.begin() + steps[b].first * kHeads * kDim, tokens[b].q.end());
        kv_offsets.push_back(kv_offsets.back() + kv_lens[b]);
      }
      GuardedBuffer<float> varlen(q.size());
      flash_attention_varlen(context, {q.data(), DType::f32, {total_q, kHeads, kDim}},
                             {k.data(), DType::f32, {kv_offsets.back(), kKvHeads, kDim}},
                             {v.data(), DType::f32, {kv_offsets.back(), kKvHeads, kDim}},
                             {varlen.data(), DType::f32, {total_q, kHeads, kDim}}, q_offsets, kv_offsets, packed);
      EXPECT_EQ(std::memcmp(varlen.data(), paged.data(), paged.size() * sizeof(float)), 0);
      for (std::size_t b : {0u, 2u}) {
        const std::int64_t first = q_offsets[b], n = q_offsets[b + 1] - first, keys = kv_lens[b];
        FlashAttentionOptions alone = packed;
        alone.prefix_lens = std::span(prefixes).subspan(b, 1);
        alone.bias = ConstTensorView(bias.data() + first * columns, DType::f32, {1, kHeads, n, keys},
                                     {0, total_q * columns, columns, 1});
        const std::uint8_t* rows = visible.data() + first * columns;
        if (tree) {
          alone.tree = ConstTensorView(rows, DType::boolean, {1, n, n}, {0, columns, 1});
        } else {
          alone.visible = ConstTensorView(rows, DType::boolean, {n, keys}, {columns, 1});
        }
        GuardedBuffer<float> out(std::size_t(n * kHeads * kDim));
        const auto heads = [](auto* data, std::int64_t len, std::int64_t num_heads) {
          return TensorView(const_cast<float*>(data), DType::f32, {1, num_heads, len, kDim},
                            {0, kDim, num_heads * kDim, 1});
        };
        flash_attention(context, heads(q.data() + first * kHeads * kDim, n, kHeads),
                        heads(tokens[b].k.data(), keys, kKvHeads), heads(tokens[b].v.data(), keys, kKvHeads),
                        heads(out.data(), n, kHeads), alone);
        EXPECT_EQ(std::memcmp(out.data(), paged.data() + first * kHeads * kDim, out.size() * sizeof(float)), 0);
      }
      packed.tree = std::nullopt;
      packed.visible = ConstTensorView(visible.data(), DType::boolean, {total_q, 89});
      EXPECT_NE(
          message_of([&] { attend(context, pool, steps, packed); }).find("visible has 89 columns, sequence 2 needs 90"),
          std::string::npos);
    }
  }
}

}  // namespace
}  // namespace ops_transformer
