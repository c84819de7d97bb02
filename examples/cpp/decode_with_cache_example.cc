// SPDX-License-Identifier: Apache-2.0
// Attention over a paged cache: a prompt of two sequences that share a prefix, then one new token for each.
#include <ops_transformer/attention/flash_attention.h>
#include <ops_transformer/kv_cache/kv_pool.h>
#include <ops_transformer/kv_cache/kv_write.h>

#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

namespace ot = ops_transformer;

namespace {

constexpr std::int64_t kNumQHeads = 8, kNumKvHeads = 2, kHeadDim = 64, kPrompt = 100;

std::vector<float> random_values(std::int64_t count) {
  static std::mt19937 generator(1);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = normal(generator);
  return values;
}

void append(ot::Context& context, ot::KvPool& pool, ot::SequenceId sequence, std::int64_t num_tokens) {
  auto k = random_values(num_tokens * kNumKvHeads * kHeadDim), v = random_values(num_tokens * kNumKvHeads * kHeadDim);
  std::vector<std::int64_t> slots(static_cast<std::size_t>(num_tokens));
  pool.append(sequence, slots);
  ot::kv_write(context, ot::ConstTensorView(k.data(), ot::DType::f32, {num_tokens, kNumKvHeads, kHeadDim}),
               ot::ConstTensorView(v.data(), ot::DType::f32, {num_tokens, kNumKvHeads, kHeadDim}), slots,
               pool.pages(0));
}

}  // namespace

int main() {
  ot::Context context;
  ot::KvPool pool({.num_layers = 1, .num_kv_heads = kNumKvHeads, .head_dim = kHeadDim, .num_pages = 16});

  const ot::SequenceId first = pool.add_sequence();
  append(context, pool, first, kPrompt);
  const ot::SequenceId second = pool.fork(first);  // shares the prompt's pages
  std::printf("two sequences of %lld tokens, %lld of 16 pages free\n", static_cast<long long>(pool.length(second)),
              static_cast<long long>(pool.num_free_pages()));

  // From here on they differ: the page that both would write is copied first.
  append(context, pool, first, 1);
  append(context, pool, second, 1);

  const std::vector<ot::SequenceId> sequences{first, second};
  const auto num_sequences = static_cast<std::int64_t>(sequences.size());
  auto q = random_values(num_sequences * kNumQHeads * kHeadDim);
  std::vector<float> out(q.size()), lse(static_cast<std::size_t>(num_sequences * kNumQHeads));
  const std::vector<std::int64_t> q_offsets{0, 1, 2};  // one query token each
  ot::flash_attention_paged(
      context, ot::ConstTensorView(q.data(), ot::DType::f32, {num_sequences, kNumQHeads, kHeadDim}),
      pool.view(0, sequences), ot::TensorView(out.data(), ot::DType::f32, {num_sequences, kNumQHeads, kHeadDim}),
      q_offsets,
      {.mask = ot::Mask::causal, .lse = ot::TensorView(lse.data(), ot::DType::f32, {num_sequences, kNumQHeads})});

  for (std::size_t i = 0; i < sequences.size(); ++i) {
    std::printf("sequence %zu: out[0] = %.6f, lse of head 0 = %.6f\n", i, out[i * kNumQHeads * kHeadDim],
                lse[i * kNumQHeads]);
  }
  return std::isfinite(lse[0]) ? 0 : 1;
}
