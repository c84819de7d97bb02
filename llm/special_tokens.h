// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <string_view>
#include <vector>

#include "llm/vocabulary.h"

namespace ops_transformer::llm {

/// Finds the names of special tokens in text: leftmost first, the longest of those that begin there.
class SpecialTokens {
 public:
  explicit SpecialTokens(const Vocabulary& vocabulary);
  struct Found {
    std::size_t pos;  // text.size() where there is none
    TokenId id;
  };
  Found find(std::string_view text, const Vocabulary& vocabulary) const noexcept;

 private:
  TokenId longest_prefix(std::string_view text, const Vocabulary& vocabulary) const noexcept;
  std::vector<TokenId> by_name_;
  std::array<bool, 256> starts_{};
};

}  // namespace ops_transformer::llm
