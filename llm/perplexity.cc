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

constexpr std::int64_t kChunk = 512;  // tokens of one forward: bounds the memory of activations and logits

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
  std::vector<float> logits(std::size_t(std::min(scored, kChunk) * config.vocab_size));
  std::vector<double> losses;
  KvPool pool = model.make_kv_pool(length);
  double total = 0;
  for (std::int64_t window = 0; window < windows; ++window) {
    const auto start = tokens.begin() + window * length;
    std::vector<TokenId> input(start, start + length);
    if (const auto bos = model.tokenizer().bos(); bos && model.tokenizer().adds_bos()) input[0] = *bos;
    const SequenceId sequence = pool.add_sequence();
    for (std::int64_t begin = 0, end = 0; begin < length; begin = end) {
      end = std::min(length, begin + kChunk);
      std::vector<std::int64_t> rows(
          std::size_t(std::max<std::int64_t>(0, std::min(end, length - 1) - std::max(begin, first))));
      std::iota(rows.begin(), rows.end(), std::max(begin, first) - begin);
      const BatchSlice slice[] = {{sequence, end - begin}};
      model.forward(context, pool,
                    {std::span(input).subspan(std::size_t(begin), std::size_t(end - begin)), slice, rows},
                    {logits.data(), DType::f32, {std::int64_t(rows.size()), config.vocab_size}});
      losses.resize(rows.size());
      CallScope call(context);
      call.parallel_for(rows.size(), [&](std::size_t i, int) {
        const std::span<const float> row(logits.data() + std::int64_t(i) * config.vocab_size,
                                         std::size_t(config.vocab_size));
        losses[i] = negative_log_likelihood(row, input[std::size_t(begin + rows[i] + 1)]);
      });
      total = std::accumulate(losses.begin(), losses.end(), total);
    }
    pool.remove_sequence(sequence);
    if (!std::isfinite(total)) {
      throw InvalidFile(fmt::format("the model's logits in window {} are not numbers: the loss is {}", window, total));
    }
    if (options.progress) options.progress(window + 1, windows, std::exp(total / double((window + 1) * scored)));
  }
  return {std::exp(total / double(windows * scored)), windows * scored};
}

}  // namespace ops_transformer::llm
