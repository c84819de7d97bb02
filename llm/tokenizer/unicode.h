// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace ops_transformer::llm {

/// The character at the front of a text that is well-formed there.
std::uint32_t first_character(std::string_view text) noexcept;
void append_utf8(std::uint32_t character, std::string& out);

bool is_space(std::uint32_t character) noexcept;  // Unicode's White_Space

/// Bytes of white space at one end of a text.
std::size_t leading_space(std::string_view text) noexcept;
std::size_t trailing_space(std::string_view text) noexcept;
/// Whether a letter, mark, digit or connector stands at that end.
bool begins_with_word(std::string_view text) noexcept;
bool ends_with_word(std::string_view text) noexcept;

enum class NormalizationForm : std::uint8_t { nfc, nfd, nfkc, nfkd };
/// Unicode's normalization forms (UAX 15), by utf8proc. What is not UTF-8 stays as it is.
std::string normalized(std::string_view text, NormalizationForm form);
/// Each character's full lower case, whatever stands beside it.
std::string lowercase(std::string_view text);

}  // namespace ops_transformer::llm
