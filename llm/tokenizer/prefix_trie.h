// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "llm/tokenizer/token_id.h"

namespace ops_transformer::llm {

/// A set of strings, each with a token, that finds those which a text begins with. 9 bytes for each byte of the strings
/// at most; strings that begin alike share them.
class PrefixTrie {
 public:
  PrefixTrie() = default;
  /// Empty strings are left out; of equal ones the first in the list counts.
  explicit PrefixTrie(std::vector<std::pair<std::string_view, TokenId>> strings);

  bool empty() const noexcept { return labels_.empty(); }
  /// Calls found(length, token) for each string that `text` begins with, shortest first.
  template <class Found>
  void for_each_prefix(std::string_view text, Found&& found) const {
    std::uint32_t node = 0;
    for (std::size_t len = 0; len < text.size(); ++len) {
      node = child(node, static_cast<unsigned char>(text[len]));
      if (node == 0) return;
      if (tokens_[node - 1] >= 0) found(len + 1, tokens_[node - 1]);
    }
  }
  struct Match {
    std::size_t len = 0;
    TokenId token = -1;  // -1: none
  };
  Match longest_prefix(std::string_view text) const noexcept {
    Match match;
    for_each_prefix(text, [&](std::size_t len, TokenId token) { match = {len, token}; });
    return match;
  }

 private:
  /// 0 where there is none. Node n > 0 is row n - 1 of the arrays; the children of n are rows first_[n] … first_[n +
  /// 1].
  std::uint32_t child(std::uint32_t node, unsigned char label) const noexcept;

  std::vector<unsigned char> labels_;
  std::vector<TokenId> tokens_;
  std::vector<std::uint32_t> first_ = {0, 0};
};

}  // namespace ops_transformer::llm
