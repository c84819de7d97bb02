// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "llm/model.h"

namespace ops_transformer::llm {

struct PerplexityOptions {
  std::int64_t context_len = 512;  // tokens of a window, at least 4
  std::int64_t max_windows = 0;    // 0: all
  /// Called with (windows done, all windows, perplexity so far).
  std::function<void(std::int64_t, std::int64_t, double)> progress{};
};

struct PerplexityResult {
  double perplexity;
  std::int64_t tokens;  // scored
};

/// exp of the mean negative log likelihood over non-overlapping windows. Where the model asks for BOS it replaces the
/// window's first token; the tokens after the middle of each window are scored (context_len / 2 - 1 of them), so that
/// each has at least half a window before it. Throws InvalidArgument: fewer tokens than one window, context_len out of
/// range; InvalidFile where the model's logits are not numbers.
OPS_TRANSFORMER_API PerplexityResult perplexity(Context& context, const Model& model, std::span<const TokenId> tokens,
                                                const PerplexityOptions& options = {});

}  // namespace ops_transformer::llm
