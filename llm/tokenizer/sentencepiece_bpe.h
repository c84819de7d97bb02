// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "llm/tokenizer/fallback.h"
#include "llm/tokenizer/vocabulary.h"

namespace ops_transformer::llm {

/// Byte-pair encoding over characters as SentencePiece does it (Kudo and Richardson 2018, arXiv:1808.06226): of two
/// neighbours whose texts together are a token, those with the best score are joined first, the leftmost among equals.
class SentencePieceBpe {
 public:
  /// `vocabulary` must outlive the object; `scores` has one finite number per token.
  SentencePieceBpe(const Vocabulary& vocabulary, const std::vector<double>& scores, const Fallback& fallback);

  /// Appends the tokens of a text, at most 2^31 bytes; returns how many bytes had no token and were left out.
  std::size_t encode(std::string_view text, std::vector<TokenId>& out) const;

 private:
  const Vocabulary* vocabulary_;
  Fallback fallback_;
  std::vector<std::uint32_t> order_;  // of each token: the smaller, the better its score
  std::size_t max_len_ = 0;           // bytes of the longest token
};

}  // namespace ops_transformer::llm
