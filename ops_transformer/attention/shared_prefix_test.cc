// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/attention/shared_prefix.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "ops_transformer/attention/flash_attention.h"
#include "ops_transformer/attention/flash_attention_reference.h"
#include "ops_transformer/kv_cache/kv_pool.h"
#include "ops_transformer/kv_cache/kv_write.h"
#include "tests/support/guarded_buffer.h"
#include "tests/support/random.h"
#include "tests/support/tolerance.h"

namespace ops_transformer {
namespace {

using test::GuardedBuffer;

// Sequences over a pool, their keys kept as floats beside it.
class Batch {
 public:
  static constexpr std::int64_t kKvHeads = 2, kDim = 40;

  Batch(Context& context, DType dtype, std::int64_t page_size)
      : context_(context),
        dtype_(dtype),
        pool_({.num_layers = 1,
               .num_kv_heads = kKvHeads,
               .head_dim = kDim,
               .page_size = page_size,
               .num_pages = 8192 / page_size,
               .dtype = dtype}) {}

  std::size_t add() {
    ids_.push_back(pool_.add_sequence());
    keys_.emplace_back();
    values_.emplace_back();
    return ids_.size() - 1;
  }
  std::size_t fork(std::size_t of) {
    ids_.push_back(pool_.fork(ids_[of]));
    keys_.push_back(keys_[of]);
    values_.push_back(values_[of]);
    return ids_.size() - 1;
  }
  void append(std::size_t sequence, std::int64_t n) {
    std::vector<std::int64_t> slots(static_cast<std::size_t>(n));
    pool_.append(ids_[sequence], slots);
    std::vector<float> k(std::size_t(n * kKvHeads * kDim)), v(k.size());
    for (auto* x : {&k, &v}) {
      test::fill_normal(*x, random_);
      for (float& value : *x) value = dtype_ == DType::bf16 ? to_float(to_bfloat16(value)) : value;
    }
    kv_write(context_, {k.data(), DType::f32, {n, kKvHeads, kDim}}, {v.data(), DType::f32, {n, kKvHeads, kDim}}, slots,
             pool_.pages(0));
    keys_[sequence].insert(keys_[sequence].end(), k.begin(), k.end());
    values_[sequence].insert(values_[sequence].end(), v.begin(), v.end());
  }

  // The last q_lens[b] tokens of each sequence ask.
  void expect_matches(const std::vector<std::int64_t>& q_lens, std::int64_t num_q_heads,
                      const FlashAttentionOptions& rules) {
    std::vector<std::int64_t> offsets = {0};
    for (std::int64_t q_len : q_lens) offsets.push_back(offsets.back() + q_len);
    const std::int64_t total = offsets.back(), group = num_q_heads / kKvHeads;
    GuardedBuffer<float> q(std::size_t(total * num_q_heads * kDim)), out(q.size()),
        lse(std::size_t(total * num_q_heads));
    test::fill_normal(q, random_);
    for (float& x : q) x = dtype_ == DType::bf16 ? to_float(to_bfloat16(x)) : x;
    FlashAttentionOptions options = rules;
    options.lse = TensorView(lse.data(), DType::f32, {total, num_q_heads});
    flash_attention_paged(context_, {q.data(), DType::f32, {total, num_q_heads, kDim}}, pool_.view(0, ids_),
                          {out.data(), DType::f32, {total, num_q_heads, kDim}}, offsets, options);
    const double scale = 1 / std::sqrt(double(kDim)), cap = double(rules.logit_soft_cap);
    const double weight_error = dtype_ == DType::bf16 ? 2 * test::epsilon(DType::bf16) : 0;
    for (std::size_t b = 0; b < q_lens.size(); ++b) {
      const auto kv_len = std::int64_t(keys_[b].size()) / (kKvHeads * kDim);
      for (std::int64_t i = 0; i < q_lens[b]; ++i) {
        for (std::int64_t h = 0; h < num_q_heads; ++h) {
          const std::size_t row = std::size_t((offsets[b] + i) * num_q_heads + h);
          std::vector<double> query;
          for (std::size_t d = 0; d < kDim; ++d) query.push_back(double(q[row * kDim + d]));
          const auto in = [&](const std::vector<float>& x) {
            return [&, h](std::int64_t j, std::int64_t d) {
              return double(x[std::size_t((j * kKvHeads + h / group) * kDim + d)]);
            };
          };
          const auto expected = reference::attention_row(
              query, in(keys_[b]), in(values_[b]), kDim,
              reference::visible_keys(i, q_lens[b], kv_len, kv_len, rules.mask == Mask::causal ? 0 : kv_len), scale,
              [&](std::int64_t, double dot, double magnitude) {
                const double score = dot * scale;
                return reference::RuledScore{cap > 0 ? cap * std::tanh(score / cap) : score, magnitude * scale};
              },
              rules.sinks.empty() ? -std::numeric_limits<double>::infinity() : double(rules.sinks[std::size_t(h)]));
          const double score_error = test::tolerance(double(kDim), expected.score_magnitude, 0, DType::f32);
          const double n = double(expected.num_keys);
          for (std::size_t d = 0; d < kDim; ++d) {
            const double magnitude = expected.magnitude[d];
            ASSERT_NEAR(out[row * kDim + d], expected.out[d],
                        (2 * score_error + weight_error) * magnitude +
                            test::tolerance(n, magnitude, expected.out[d], DType::f32))
                << "sequence " << b << " query " << i << " head " << h << " d " << d;
          }
          ASSERT_NEAR(lse[row], expected.lse,
                      score_error + weight_error + test::tolerance(n, 1, expected.lse, DType::f32));
        }
      }
    }
  }

  std::vector<AttentionSequence> sequences(std::int64_t q_len) const {
    const PagedKvView view = pool_.view(0, ids_);
    std::vector<AttentionSequence> all;
    for (const PagedSequence& paged : view.sequences) {
      AttentionSequence& sequence = all.emplace_back();
      sequence.pages = paged.pages;
      sequence.kv_len = paged.kv_len;
      sequence.q_len = q_len;
      sequence.first_position = paged.kv_len - q_len;
      sequence.window_left = std::int64_t{1} << 40;
    }
    return all;
  }

 private:
  Context& context_;
  DType dtype_;
  KvPool pool_;
  test::Random random_{4};
  std::vector<SequenceId> ids_;
  std::vector<std::vector<float>> keys_, values_;
};

// Two families of forks, one sequence alone between them, and a prefill beside them: one launch.
void fill(Batch& batch) {
  const std::size_t first = batch.add();
  batch.append(first, 700);
  for (int i = 0; i < 3; ++i) batch.fork(first);
  for (std::size_t i = 0; i < 4; ++i) batch.append(i, 1 + std::int64_t(i) * 37);
  batch.append(batch.add(), 300);
  const std::size_t second = batch.add();
  batch.append(second, 330);
  batch.fork(second);
  batch.append(second, 5);
  batch.append(batch.fork(second), 200);
  batch.append(batch.add(), 120);
}

TEST(SharedPrefix, MatchesFloat64AtEveryLevel) {
  const std::vector<float> sinks = {0.5f, -1, 2, 0, 1, -3, 0.25f, 0};
  for (Isa isa : supported_isas()) {
    if (!flash_tiles.row(isa)) continue;
    for (DType dtype : {DType::f32, DType::bf16}) {
      for (std::int64_t heads : {2, 8}) {
        for (int num_threads : {1, 3}) {
          SCOPED_TRACE(testing::Message() << isa_name(isa) << " " << dtype_name(dtype) << " heads " << heads);
          Context context({.num_threads = num_threads, .isa = isa});
          Batch batch(context, dtype, 16);
          fill(batch);
          for (const auto& q_lens : {std::vector<std::int64_t>{1, 1, 1, 1, 1, 1, 1, 1, 1},
                                     {1, 3, 1, 1, 1, 2, 1, 1, 70},
                                     {1, 0, 1, 1, 0, 1, 1, 1, 1}}) {
            batch.expect_matches(q_lens, heads, {.mask = Mask::causal});
            batch.expect_matches(q_lens, heads,
                                 {.logit_soft_cap = 2.0f, .sinks = std::span(sinks).first(std::size_t(heads))});
          }
        }
      }
    }
  }
}

// The schedule must not depend on luck: these share, and those don't.
TEST(SharedPrefix, IsFoundWhereItIsWorthIt) {
  Context context({.num_threads = 1});
  Batch batch(context, DType::bf16, 16);
  fill(batch);
  const AttentionPlan chosen = plan({8, 2, 40, 40, DType::bf16}, device_spec_of(Isa::avx512_bf16), {2, false});
  AttentionArgs args{};
  args.group = 4;
  args.page_size = 16;
  Arena arena;
  auto sequences = batch.sequences(1);
  const SharedPrefixes found = share_prefixes(chosen, args, sequences, arena);
  ASSERT_EQ(found.prefixes.size(), 2u);
  EXPECT_EQ(found.prefixes[0].first, 0);
  EXPECT_EQ(found.prefixes[0].count, 4);
  EXPECT_EQ(found.prefixes[0].len, 688);  // whole pages of the 700
  EXPECT_EQ(found.prefixes[1].first, 5);
  EXPECT_EQ(found.prefixes[1].count, 3);
  EXPECT_EQ(found.prefixes[1].len, 320);
  ASSERT_EQ(found.sequences.size(), sequences.size() + 2);
  EXPECT_EQ(found.sequences[sequences.size()].q_len, 4);
  sequences[6].window_left = 100;  // a window hides other keys from each; the first four still share theirs
  ASSERT_EQ(share_prefixes(chosen, args, sequences, arena).prefixes.size(), 1u);
  sequences[6].window_left = std::int64_t{1} << 40;
  const float slope = 1;
  args.rule.alibi_slopes = &slope;
  EXPECT_TRUE(share_prefixes(chosen, args, sequences, arena).prefixes.empty());
  args.rule.alibi_slopes = nullptr;
  const AttentionPlan exact = plan({8, 2, 40, 40, DType::bf16}, device_spec_of(Isa::avx512_bf16), {2, true});
  EXPECT_TRUE(share_prefixes(exact, args, sequences, arena).prefixes.empty());
}

}  // namespace
}  // namespace ops_transformer
