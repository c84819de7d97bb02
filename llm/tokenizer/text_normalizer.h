// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "llm/tokenizer/added_tokens.h"
#include "llm/tokenizer/charsmap.h"
#include "llm/tokenizer/regex.h"
#include "llm/tokenizer/tokenizer_data.h"

namespace ops_transformer::llm {

/// What becomes of a stretch of text before it is cut: the steps of tokenizer.json, or SentencePiece's compiled map and
/// rules of white space.
class TextNormalizer {
 public:
  /// Throws InvalidFile for a pattern or map that can't be used.
  explicit TextNormalizer(const TokenizerData& data);

  /// Whether apply changes any text.
  bool changes_text() const noexcept { return sentencepiece_ || !steps_.empty(); }
  /// `first`: the text that follows is the first of an encoding. The map leaves `added`'s user-defined tokens alone.
  std::string apply(std::string_view text, bool first, const AddedTokens& added) const;

 private:
  struct Step {
    NormalizerStep step;
    std::shared_ptr<const Regex> regex;
  };
  std::string sentencepiece(std::string_view text, bool first, const AddedTokens& added) const;

  bool sentencepiece_;
  bool add_space_, first_only_, unless_space_, squeeze_;
  Charsmap charsmap_;
  std::vector<Step> steps_;
};

}  // namespace ops_transformer::llm
