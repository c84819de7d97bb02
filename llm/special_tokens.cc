// SPDX-License-Identifier: Apache-2.0
#include "llm/special_tokens.h"

#include <algorithm>

namespace ops_transformer::llm {

SpecialTokens::SpecialTokens(const Vocabulary& vocabulary) {
  for (TokenId id = 0; id < static_cast<TokenId>(vocabulary.size()); ++id) {
    const std::string_view name = vocabulary.bytes(id);
    if (!vocabulary.is_special(id) || name.empty()) continue;
    by_name_.push_back(id);
    starts_[static_cast<unsigned char>(name.front())] = true;
  }
  std::sort(by_name_.begin(), by_name_.end(), [&](TokenId a, TokenId b) {
    const int order = vocabulary.bytes(a).compare(vocabulary.bytes(b));
    return order != 0 ? order < 0 : a < b;
  });
}

TokenId SpecialTokens::longest_prefix(std::string_view text, const Vocabulary& vocabulary) const noexcept {
  // Names that share the first `len` bytes with the text stand together; each step narrows them by one byte.
  auto first = by_name_.begin(), last = by_name_.end();
  TokenId found = kNoToken;
  for (std::size_t len = 0; len < text.size() && first != last; ++len) {
    const auto c = static_cast<unsigned char>(text[len]);
    const auto byte_at = [&](TokenId id) {
      const std::string_view name = vocabulary.bytes(id);
      return name.size() > len ? static_cast<unsigned char>(name[len]) : -1;
    };
    first = std::lower_bound(first, last, c, [&](TokenId id, int byte) { return byte_at(id) < byte; });
    last = std::upper_bound(first, last, c, [&](int byte, TokenId id) { return byte < byte_at(id); });
    if (first != last && vocabulary.bytes(*first).size() == len + 1) found = *first;
  }
  return found;
}

SpecialTokens::Found SpecialTokens::find(std::string_view text, const Vocabulary& vocabulary) const noexcept {
  for (std::size_t pos = 0; pos < text.size(); ++pos) {
    if (!starts_[static_cast<unsigned char>(text[pos])]) continue;
    const TokenId id = longest_prefix(text.substr(pos), vocabulary);
    if (id != kNoToken) return {pos, id};
  }
  return {text.size(), kNoToken};
}

}  // namespace ops_transformer::llm
