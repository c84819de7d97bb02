// SPDX-License-Identifier: Apache-2.0
#include "llm/perplexity.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "ops_transformer/base/validate.h"

namespace ops_transformer::llm {
namespace {

double negative_log_likelihood(std::span<const float> logits, TokenId token) {
  const float most = *std::ranges::max_element(logits);
  double sum = 0;
  for (float logit : logits) sum += std::exp(double(logit) - most);
  return std::log(sum) - (double(logits[std::size_t(token)]) - most);
}

}  // namespace

PerplexityResult perplexity(Context& context, const Model& model, std::span<const TokenId> tokens,
                            const PerplexityOptions& options) {
  const ModelConfig& config = model.config();
  const std::int64_t length = options.context_len;
  if (length < 4 || length > config.context_len) {
    invalid("perplexity", fmt::format("context is {}, must be from 4 to {}", length, config.context_len));
  }
  std::int64_t windows = std::int64_t(tokens.size()) / length;
  if (windows == 0) {
    invalid("perplexity",
            fmt::format("the text has {} tokens, must have at least {} (one window)", tokens.size(), length));
  }
  if (options.max_windows > 0) windows = std::min(windows, options.max_windows);

  // Token j + 1 is scored by the logits of row j, for j from the middle to the last but one.
  const std::int64_t first = length / 2, scored = length - first - 1;
  std::vector<std::int64_t> rows(static_cast<std::size_t>(scored));
  std::iota(rows.begin(), rows.end(), first);
  std::vector<float> logits(std::size_t(scored * config.vocab_size));
  std::vector<double> losses(static_cast<std::size_t>(scored));
  KvPool pool = model.make_kv_pool(length);
  double total = 0;
  for (std::int64_t window = 0; window < windows; ++window) {
    const auto begin = tokens.begin() + window * length;
    std::vector<TokenId> input(begin, begin + length);
    if (const auto bos = model.tokenizer().bos(); bos && model.tokenizer().adds_bos()) input[0] = *bos;
    const SequenceId sequence = pool.add_sequence();
    const BatchSlice slice[] = {{sequence, length}};
    model.forward(context, pool, {input, slice, rows}, {logits.data(), DType::f32, {scored, config.vocab_size}});
    pool.remove_sequence(sequence);
    CallScope call(context);
    call.parallel_for(rows.size(), [&](std::size_t i, int) {
      const std::span<const float> row(logits.data() + std::int64_t(i) * config.vocab_size,
                                       std::size_t(config.vocab_size));
      losses[i] = negative_log_likelihood(row, input[std::size_t(rows[i]) + 1]);
    });
    total = std::accumulate(losses.begin(), losses.end(), total);
    if (options.progress) options.progress(window + 1, windows, std::exp(total / double((window + 1) * scored)));
  }
  return {std::exp(total / double(windows * scored)), windows * scored};
}

}  // namespace ops_transformer::llm
