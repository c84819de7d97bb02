// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "llm/tokenizer/token_id.h"
#include "llm/tokenizer/tokenizer_data.h"

namespace ops_transformer::llm {

inline constexpr TokenId kNoToken = -1;

/// The tokens of a vocabulary as the bytes they stand for: one block of bytes, offsets and a hash table, about
/// 2 MB for 49152 tokens.
class Vocabulary {
 public:
  /// `texts` as the file has them; those of normal tokens are written as `model` says. Throws InvalidFile for a byte
  /// token that is not written as one.
  Vocabulary(const StringList& texts, std::vector<TokenType> types,
             TokenizerModel model = TokenizerModel::byte_level_bpe);

  std::size_t size() const noexcept { return types_.size(); }
  std::string_view bytes(TokenId id) const noexcept {
    const auto i = static_cast<std::size_t>(id);
    return std::string_view(bytes_).substr(offsets_[i], offsets_[i + 1] - offsets_[i]);
  }
  TokenType type(TokenId id) const noexcept { return types_[static_cast<std::size_t>(id)]; }
  void set_type(TokenId id, TokenType type) noexcept { types_[static_cast<std::size_t>(id)] = type; }
  /// Tokens that stand for something other than their text; encoding never makes one from text unless asked to.
  bool is_special(TokenId id) const noexcept {
    const TokenType t = type(id);
    return t == TokenType::control || t == TokenType::unknown;
  }
  /// Tokens that stand for their text.
  bool is_text(TokenId id) const noexcept {
    const TokenType t = type(id);
    return t == TokenType::normal || t == TokenType::undefined || t == TokenType::user_defined;
  }
  /// The token that stands for these bytes, or kNoToken. Among equals a text before a special one before a byte, then
  /// the first.
  TokenId find(std::string_view bytes) const noexcept;
  /// As find, but only a token that is_text.
  TokenId find_text(std::string_view bytes) const noexcept {
    const TokenId id = find(bytes);
    return id != kNoToken && is_text(id) ? id : kNoToken;
  }
  /// Appends the bytes that a normal token stands for whose text the file writes so.
  void append_bytes(std::string_view text, std::string& out) const;

 private:
  std::size_t slot(std::string_view bytes) const noexcept;

  TokenizerModel model_;
  std::string bytes_;
  std::vector<std::uint32_t> offsets_;
  std::vector<TokenType> types_;
  std::vector<TokenId> table_;
  std::uint64_t seed_;
};

/// The bytes that a text in GPT-2's printable alphabet stands for; the text itself where a character is not of it.
/// Appends to `out`.
void append_byte_level(std::string_view text, std::string& out);

/// The bytes in GPT-2's printable alphabet. Appends to `out`.
void append_printable(std::string_view bytes, std::string& out);

/// The text with spaces for U+2581, as SentencePiece writes them. Appends to `out`.
void append_spaces(std::string_view text, std::string& out);

/// A start value for hash tables that hold keys from files, so that a file can't be made to fill one chain.
std::uint64_t hash_seed() noexcept;

}  // namespace ops_transformer::llm
