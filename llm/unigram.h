// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "llm/fallback.h"
#include "llm/prefix_trie.h"
#include "llm/vocabulary.h"

namespace ops_transformer::llm {

/// The unigram language model (Kudo 2018, arXiv:1804.10959): the cut of a text into tokens whose scores have the
/// largest sum, found from left to right (Viterbi). A character that no token begins with costs the lowest score
/// less 10, as in SentencePiece.
class UnigramEncoder {
 public:
  /// `scores` has one finite number per token.
  UnigramEncoder(const Vocabulary& vocabulary, const std::vector<float>& scores, const Fallback& fallback);

  /// Appends the tokens of a text, at most 2^31 bytes; returns how many bytes had no token and were left out.
  std::size_t encode(std::string_view text, std::vector<TokenId>& out) const;

 private:
  Fallback fallback_;
  PrefixTrie tokens_;
  std::vector<float> scores_;
  std::vector<bool> user_defined_;
  float unknown_score_ = 0, max_score_ = 0;
};

}  // namespace ops_transformer::llm
