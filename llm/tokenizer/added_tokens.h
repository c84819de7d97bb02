// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "llm/tokenizer/prefix_trie.h"
#include "llm/tokenizer/tokenizer_data.h"
#include "llm/tokenizer/vocabulary.h"

namespace ops_transformer::llm {

/// The bytes [begin, end) of a text.
struct TextRange {
  std::size_t begin, end;
};

/// Finds added tokens in text: leftmost first, the longest of those that begin there.
class AddedTokens {
 public:
  struct Token {
    std::string text;
    AddedToken flags;
    bool special;
  };
  AddedTokens() = default;
  explicit AddedTokens(const std::vector<Token>& tokens);

  bool empty() const noexcept { return user_defined_.empty() && special_.empty(); }
  /// Calls plain(begin, end) and token(id) in the text's order, together for all of it. Special tokens are looked for
  /// where `parse_special`, but in no `literal` range (ascending and disjoint), nor reaching into one.
  void scan(std::string_view text, bool parse_special, std::span<const TextRange> literal,
            const std::function<void(std::size_t, std::size_t)>& plain,
            const std::function<void(TokenId)>& token) const;
  /// The longest user-defined token that the text begins with; 0 bytes where there is none.
  std::size_t user_defined_prefix(std::string_view text) const noexcept {
    return user_defined_.longest_prefix(text).len;
  }

 private:
  const AddedToken& flags(TokenId id) const noexcept;

  PrefixTrie user_defined_, special_;
  std::vector<AddedToken> flags_;  // by id
};

}  // namespace ops_transformer::llm
