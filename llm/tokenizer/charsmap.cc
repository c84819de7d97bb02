// SPDX-License-Identifier: Apache-2.0
#include "llm/tokenizer/charsmap.h"

#include <fmt/format.h>

#include <cstring>

#include "ops_transformer/base/error.h"

namespace ops_transformer::llm {
namespace {

std::uint32_t offset(std::uint32_t unit) noexcept { return (unit >> 10) << ((unit & (1u << 9)) >> 6); }
bool has_leaf(std::uint32_t unit) noexcept { return (unit >> 8 & 1) == 1; }

}  // namespace

Charsmap::Charsmap(std::string_view blob) {
  if (blob.empty()) return;
  std::uint32_t trie_bytes = 0;
  if (blob.size() > 4) std::memcpy(&trie_bytes, blob.data(), 4);
  if (trie_bytes == 0 || trie_bytes % 4 != 0 || trie_bytes >= blob.size() - 4 || blob.back() != '\0') {
    throw InvalidFile(
        fmt::format("key 'tokenizer.ggml.precompiled_charsmap' is not a compiled normalizer: {} bytes, of "
                    "which {} are said to be its trie",
                    blob.size(), trie_bytes));
  }
  units_.resize(trie_bytes / 4);
  std::memcpy(units_.data(), blob.data() + 4, trie_bytes);
  replacements_ = blob.substr(4 + trie_bytes);
}

Charsmap::Match Charsmap::find(std::string_view text) const noexcept {
  Match match;
  if (units_.empty()) return match;
  std::size_t node = offset(units_[0]);
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto label = static_cast<unsigned char>(text[i]);
    node ^= label;
    if (node >= units_.size() || (units_[node] & 0x800000ffu) != label) break;
    const std::uint32_t unit = units_[node];
    node ^= offset(unit);
    if (!has_leaf(unit) || node >= units_.size()) continue;
    const std::size_t at = units_[node] & 0x7fffffffu;
    if (at >= replacements_.size()) continue;
    const std::string_view rest = std::string_view(replacements_).substr(at);
    match = {i + 1, rest.substr(0, rest.find('\0'))};
  }
  return match;
}

}  // namespace ops_transformer::llm
