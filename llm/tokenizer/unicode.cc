// SPDX-License-Identifier: Apache-2.0
#include "llm/tokenizer/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <new>

#include "llm/tokenizer/utf8.h"

namespace ops_transformer::llm {
namespace {

/// Bytes of the last character of a non-empty text; 1 where it is not well-formed.
std::size_t last_len(std::string_view text) noexcept {
  for (std::size_t len = 1; len <= std::min<std::size_t>(4, text.size()); ++len) {
    const Utf8Step step = utf8_step(text.substr(text.size() - len));
    if (step.kind == Utf8Step::Kind::valid && step.len == len) return len;
  }
  return 1;
}

bool well_formed(std::string_view text) noexcept {
  return !text.empty() && utf8_step(text).kind == Utf8Step::Kind::valid;
}

/// As \w in the engine that `tokenizers` looks for single words with: letters, marks, digits, connectors, joiners.
bool is_word(std::uint32_t character) noexcept {
  const auto within = [&](std::uint32_t first, std::uint32_t last) { return character >= first && character <= last; };
  if (within(0x200c, 0x200d) || within(0x24b6, 0x24e9) || within(0x1f130, 0x1f149) || within(0x1f150, 0x1f169) ||
      within(0x1f170, 0x1f189)) {
    return true;
  }
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(character))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return false;
  }
}

struct Free {
  void operator()(utf8proc_uint8_t* text) const noexcept { std::free(text); }
};

void append_normalized(std::string_view text, NormalizationForm form, std::string& out) {
  const bool composed = form == NormalizationForm::nfc || form == NormalizationForm::nfkc;
  const bool compatible = form == NormalizationForm::nfkc || form == NormalizationForm::nfkd;
  const auto options = static_cast<utf8proc_option_t>(
      UTF8PROC_STABLE | (composed ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) | (compatible ? UTF8PROC_COMPAT : 0));
  utf8proc_uint8_t* result = nullptr;
  const auto len = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                static_cast<utf8proc_ssize_t>(text.size()), &result, options);
  const std::unique_ptr<utf8proc_uint8_t, Free> owned(result);
  if (len < 0) throw std::bad_alloc();  // the text is well-formed: nothing else can fail
  out.append(reinterpret_cast<const char*>(result), static_cast<std::size_t>(len));
}

}  // namespace

std::uint32_t first_character(std::string_view text) noexcept {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint32_t>(static_cast<unsigned char>(text[i])); };
  if (byte(0) < 0x80) return byte(0);
  if (byte(0) < 0xe0) return (byte(0) & 0x1f) << 6 | (byte(1) & 0x3f);
  if (byte(0) < 0xf0) return (byte(0) & 0x0f) << 12 | (byte(1) & 0x3f) << 6 | (byte(2) & 0x3f);
  return (byte(0) & 0x07) << 18 | (byte(1) & 0x3f) << 12 | (byte(2) & 0x3f) << 6 | (byte(3) & 0x3f);
}

void append_utf8(std::uint32_t character, std::string& out) {
  std::array<utf8proc_uint8_t, 4> bytes{};
  const auto len = utf8proc_encode_char(static_cast<utf8proc_int32_t>(character), bytes.data());
  out.append(reinterpret_cast<const char*>(bytes.data()), static_cast<std::size_t>(len));
}

bool is_space(std::uint32_t c) noexcept {
  return (c >= 0x9 && c <= 0xd) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) ||
         c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

std::size_t leading_space(std::string_view text) noexcept {
  std::size_t len = 0;
  while (well_formed(text.substr(len)) && is_space(first_character(text.substr(len)))) {
    len += utf8_step(text.substr(len)).len;
  }
  return len;
}

std::size_t trailing_space(std::string_view text) noexcept {
  const std::size_t size = text.size();
  while (!text.empty()) {
    const std::string_view last = text.substr(text.size() - last_len(text));
    if (!well_formed(last) || !is_space(first_character(last))) break;
    text.remove_suffix(last.size());
  }
  return size - text.size();
}

bool begins_with_word(std::string_view text) noexcept { return well_formed(text) && is_word(first_character(text)); }

bool ends_with_word(std::string_view text) noexcept {
  return !text.empty() && begins_with_word(text.substr(text.size() - last_len(text)));
}

std::string normalized(std::string_view text, NormalizationForm form) {
  std::string out;
  while (!text.empty()) {
    const std::size_t valid = utf8_valid_len(text);
    if (valid > 0) append_normalized(text.substr(0, valid), form, out);
    text.remove_prefix(valid);
    if (text.empty()) break;
    const std::size_t invalid = utf8_step(text).len;
    out += text.substr(0, invalid);
    text.remove_prefix(invalid);
  }
  return out;
}

std::string lowercase(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const Utf8Step step = utf8_step(text);
    const std::string_view character = text.substr(0, step.len);
    if (step.kind != Utf8Step::Kind::valid) {
      out += character;
    } else if (first_character(character) == 0x130) {
      out += "i\u0307";  // the one character whose lower case is two
    } else {
      append_utf8(
          static_cast<std::uint32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(first_character(character)))), out);
    }
    text.remove_prefix(step.len);
  }
  return out;
}

}  // namespace ops_transformer::llm
