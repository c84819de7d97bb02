// SPDX-License-Identifier: Apache-2.0
#include "llm/tokenizer/prefix_trie.h"

#include <algorithm>

namespace ops_transformer::llm {

PrefixTrie::PrefixTrie(std::vector<std::pair<std::string_view, TokenId>> strings) {
  std::erase_if(strings, [](const auto& entry) { return entry.first.empty(); });
  std::stable_sort(strings.begin(), strings.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  strings.erase(std::unique(strings.begin(), strings.end(), [](auto& a, auto& b) { return a.first == b.first; }),
                strings.end());
  // Level by level: the strings that share a node stand together, and so do a node's children.
  struct Range {
    std::size_t begin, end;
  };
  std::vector<Range> level = {{0, strings.size()}};
  first_.assign(1, 0);
  for (std::size_t depth = 0; !level.empty(); ++depth) {
    std::vector<Range> next;
    for (const Range& range : level) {
      std::size_t at = range.begin;
      while (at < range.end && strings[at].first.size() <= depth) ++at;  // the node's own string
      while (at < range.end) {
        const char label = strings[at].first[depth];
        std::size_t end = at;
        while (end < range.end && strings[end].first[depth] == label) ++end;
        labels_.push_back(static_cast<unsigned char>(label));
        tokens_.push_back(strings[at].first.size() == depth + 1 ? strings[at].second : -1);
        next.push_back({at, end});
        at = end;
      }
      first_.push_back(static_cast<std::uint32_t>(labels_.size()));
    }
    level = std::move(next);
  }
}

std::uint32_t PrefixTrie::child(std::uint32_t node, unsigned char label) const noexcept {
  const auto begin = labels_.begin() + first_[node], end = labels_.begin() + first_[node + 1];
  const auto at = std::lower_bound(begin, end, label);
  return at != end && *at == label ? static_cast<std::uint32_t>(at - labels_.begin()) + 1 : 0;
}

}  // namespace ops_transformer::llm
