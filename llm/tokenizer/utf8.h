// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "ops_transformer/base/export.h"

namespace ops_transformer::llm {

struct Utf8Step {
  enum class Kind { valid, invalid, incomplete } kind;
  std::size_t len;  // bytes of the sequence, or of its longest well-formed beginning (at least 1)
};

/// What stands at the front of a non-empty text: a well-formed sequence (no overlong forms, no surrogates, up to
/// U+10FFFF), something that can't become one, or one that the end of the text cuts off. Unicode 15, table 3-7.
Utf8Step utf8_step(std::string_view text) noexcept;

/// Bytes of the well-formed beginning of a text.
std::size_t utf8_valid_len(std::string_view text) noexcept;

/// Text of unknown origin, for messages and terminals: control characters, quotes and backslashes escaped as in C,
/// U+FFFD for what is not UTF-8, and "…" for what is left once `max_len` bytes are passed.
OPS_TRANSFORMER_API std::string shown(std::string_view text, std::size_t max_len = 100);

/// Adds the text to `out`, each `sought` in it as `content`. An empty `sought` is nowhere.
void append_replaced(std::string_view text, std::string_view sought, std::string_view content, std::string& out);

inline constexpr std::string_view kSpaceSymbol = "\xe2\x96\x81";           // U+2581, SentencePiece's space
inline constexpr std::string_view kReplacementCharacter = "\xef\xbf\xbd";  // U+FFFD

}  // namespace ops_transformer::llm
