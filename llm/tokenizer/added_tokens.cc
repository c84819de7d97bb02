// SPDX-License-Identifier: Apache-2.0
#include "llm/tokenizer/added_tokens.h"

#include <algorithm>
#include <utility>

#include "llm/tokenizer/unicode.h"
#include "llm/tokenizer/utf8.h"

namespace ops_transformer::llm {

AddedTokens::AddedTokens(const std::vector<Token>& tokens) {
  std::vector<std::pair<std::string_view, TokenId>> user_defined, special;
  for (const Token& token : tokens) {
    (token.special ? special : user_defined).emplace_back(token.text, token.flags.id);
    flags_.push_back(token.flags);
  }
  user_defined_ = PrefixTrie(std::move(user_defined));
  special_ = PrefixTrie(std::move(special));
  std::stable_sort(flags_.begin(), flags_.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
}

const AddedToken& AddedTokens::flags(TokenId id) const noexcept {
  return *std::lower_bound(flags_.begin(), flags_.end(), id, [](const auto& a, TokenId b) { return a.id < b; });
}

void AddedTokens::scan(std::string_view text, bool parse_special, std::span<const TextRange> literal,
                       const std::function<void(std::size_t, std::size_t)>& plain,
                       const std::function<void(TokenId)>& token) const {
  std::size_t done = 0;
  for (std::size_t pos = 0; pos < text.size() && !empty();) {
    while (!literal.empty() && literal.front().end <= pos) literal = literal.subspan(1);
    PrefixTrie::Match match = user_defined_.longest_prefix(text.substr(pos));
    const std::size_t special_end = literal.empty() ? text.size() : std::max(pos, literal.front().begin);
    if (parse_special) {
      const PrefixTrie::Match special = special_.longest_prefix(text.substr(pos, special_end - pos));
      if (special.len > match.len) match = special;
    }
    std::size_t begin = pos, end = pos + match.len;
    if (match.len > 0) {
      const AddedToken& wish = flags(match.token);
      if (wish.single_word && (ends_with_word(text.substr(0, begin)) || begins_with_word(text.substr(end)))) {
        match.len = 0;
      }
      if (wish.strip_left) begin = std::max(done, begin - trailing_space(text.substr(0, begin)));
      if (wish.strip_right) end += leading_space(text.substr(end));
    }
    if (match.len == 0) {
      ++pos;
      continue;
    }
    if (begin > done) plain(done, begin);
    token(match.token);
    pos = done = end;
  }
  if (done < text.size()) plain(done, text.size());
}

}  // namespace ops_transformer::llm
