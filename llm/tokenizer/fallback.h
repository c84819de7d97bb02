// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string_view>
#include <vector>

#include "llm/tokenizer/vocabulary.h"

namespace ops_transformer::llm {

/// What stands for characters that a vocabulary over characters lacks: the tokens of their bytes, else the unknown
/// token, else nothing.
class Fallback {
 public:
  Fallback(const Vocabulary& vocabulary, std::optional<TokenId> unknown, bool fuse_unknown);
  /// Appends to `out`, which had `begin` tokens when the piece of text began; returns how many bytes were left out.
  std::size_t append(std::string_view character, std::vector<TokenId>& out, std::size_t begin) const;

 private:
  std::array<TokenId, 256> bytes_;
  TokenId unknown_;
  bool fuse_;
};

}  // namespace ops_transformer::llm
