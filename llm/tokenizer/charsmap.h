// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ops_transformer::llm {

/// SentencePiece's compiled normalizer, GGUF's `precompiled_charsmap`: a double-array trie (Darts-clone's units) from
/// texts to offsets of their replacements, which follow it with a zero byte behind each.
class Charsmap {
 public:
  Charsmap() = default;
  /// Throws InvalidFile for one whose sizes do not fit.
  explicit Charsmap(std::string_view blob);

  bool empty() const noexcept { return units_.empty(); }
  struct Match {
    std::size_t len = 0;  // bytes of the longest text that is replaced; 0: none
    std::string_view replacement{};
  };
  Match find(std::string_view text) const noexcept;

 private:
  std::vector<std::uint32_t> units_;
  std::string replacements_;
};

}  // namespace ops_transformer::llm
