// SPDX-License-Identifier: Apache-2.0
#include "llm/tokenizer/fallback.h"

#include <algorithm>

namespace ops_transformer::llm {

Fallback::Fallback(const Vocabulary& vocabulary, std::optional<TokenId> unknown, bool fuse_unknown)
    : unknown_(unknown.value_or(kNoToken)), fuse_(fuse_unknown) {
  bytes_.fill(kNoToken);
  for (TokenId id = 0; id < static_cast<TokenId>(vocabulary.size()); ++id) {
    if (vocabulary.type(id) != TokenType::byte) continue;
    TokenId& entry = bytes_[static_cast<unsigned char>(vocabulary.bytes(id)[0])];
    if (entry == kNoToken) entry = id;
  }
}

std::size_t Fallback::append(std::string_view character, std::vector<TokenId>& out, std::size_t begin) const {
  const auto token = [&](char c) { return bytes_[static_cast<unsigned char>(c)]; };
  if (std::all_of(character.begin(), character.end(), [&](char c) { return token(c) != kNoToken; })) {
    for (const char c : character) out.push_back(token(c));
    return 0;
  }
  if (unknown_ == kNoToken) return character.size();
  if (!fuse_ || out.size() == begin || out.back() != unknown_) out.push_back(unknown_);
  return 0;
}

}  // namespace ops_transformer::llm
