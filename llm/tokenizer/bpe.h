// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "llm/tokenizer/fallback.h"
#include "llm/tokenizer/vocabulary.h"

namespace ops_transformer::llm {

/// Byte-pair encoding (Sennrich et al. 2016, arXiv:1508.07909) over token ids: a hash table from a pair of tokens to
/// the merge's rank and result, 16 bytes a slot, 2 MB for 48900 merges.
class BytePairEncoder {
 public:
  /// `merges` as the file has them: "left right", best first. Throws InvalidFile, naming the merge, where one is
  /// malformed or uses a token that the vocabulary lacks. Merges into special tokens are left out.
  /// With `fallback` merging begins with characters, which it stands in for where they are no tokens; else with bytes.
  /// `vocabulary` must outlive the object.
  BytePairEncoder(const Vocabulary& vocabulary, const StringList& merges, std::optional<Fallback> fallback = {});

  /// Memory of a call, kept by the caller over many calls.
  struct Scratch {
    std::vector<TokenId> id;
    std::vector<std::uint32_t> next, previous;
    std::vector<std::uint64_t> heap;
  };

  /// Appends the tokens of one pre-token, at most 2^31 bytes. Bytes that no token stands for are left out, as PyPI's
  /// `tokenizers` does without an unknown token; returns how many.
  std::size_t encode(std::string_view piece, Scratch& scratch, std::vector<TokenId>& out) const;

 private:
  struct Merge {
    TokenId left, right;
    std::uint32_t rank;
    TokenId result;
  };
  /// Fills scratch.id with the tokens of the piece's bytes or characters; returns how many bytes were left out.
  std::size_t begin(std::string_view piece, Scratch& scratch) const;
  const Merge& find(TokenId left, TokenId right) const noexcept;

  const Vocabulary* vocabulary_;
  std::optional<Fallback> fallback_;
  std::array<TokenId, 256> byte_tokens_;
  std::vector<Merge> table_;
  std::uint64_t seed_;
};

}  // namespace ops_transformer::llm
