// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "llm/tokenizer/fallback.h"
#include "llm/tokenizer/prefix_trie.h"
#include "llm/tokenizer/tokenizer_data.h"
#include "llm/tokenizer/vocabulary.h"

namespace ops_transformer::llm {

/// The unigram language model (Kudo 2018, arXiv:1804.10959): the cut of a text into tokens whose scores have the
/// largest sum, found from left to right (Viterbi). A character that no token begins with costs the lowest score
/// less 10, as in SentencePiece.
class UnigramEncoder {
 public:
  /// Of `data` the scores, one finite number per token, count, and `added`: user-defined tokens that are found in text
  /// before are no part of a cut.
  UnigramEncoder(const Vocabulary& vocabulary, const TokenizerData& data, const Fallback& fallback);

  /// Appends the tokens of a text, at most 2^31 bytes; returns how many bytes had no token and were left out.
  std::size_t encode(std::string_view text, std::vector<TokenId>& out) const;

 private:
  template <class Real>
  std::size_t encode_as(std::string_view text, std::vector<TokenId>& out) const;

  Fallback fallback_;
  PrefixTrie tokens_;
  std::vector<double> scores_;
  std::vector<bool> user_defined_;
  bool in_double_;
  double unknown_score_ = 0, max_score_ = 0;
};

}  // namespace ops_transformer::llm
