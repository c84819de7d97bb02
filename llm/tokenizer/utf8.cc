// SPDX-License-Identifier: Apache-2.0
#include "llm/tokenizer/utf8.h"

#include <fmt/format.h>

#include <cstdint>
#include <cstring>

namespace ops_transformer::llm {

Utf8Step utf8_step(std::string_view text) noexcept {
  using Kind = Utf8Step::Kind;
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {Kind::valid, 1};
  if (lead < 0xc2 || lead > 0xf4) return {Kind::invalid, 1};
  const std::size_t len = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  // The second byte's range excludes overlong forms, surrogates and what lies past U+10FFFF.
  const unsigned char low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
  const unsigned char high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
  for (std::size_t i = 1; i < len; ++i) {
    if (i == text.size()) return {Kind::incomplete, i};
    if (byte(i) < (i == 1 ? low : 0x80) || byte(i) > (i == 1 ? high : 0xbf)) return {Kind::invalid, i};
  }
  return {Kind::valid, len};
}

std::size_t utf8_valid_len(std::string_view text) noexcept {
  std::size_t pos = 0;
  while (pos < text.size()) {
    if (text.size() - pos >= 8) {
      std::uint64_t word;
      std::memcpy(&word, text.data() + pos, 8);
      if ((word & 0x8080808080808080u) == 0) {
        pos += 8;
        continue;
      }
    }
    const Utf8Step step = utf8_step(text.substr(pos));
    if (step.kind != Utf8Step::Kind::valid) return pos;
    pos += step.len;
  }
  return pos;
}

std::string shown(std::string_view text, std::size_t max_len) {
  std::string out;
  while (!text.empty()) {
    if (out.size() >= max_len) return out + "…";
    const Utf8Step step = utf8_step(text);
    const std::string_view character = text.substr(0, step.len);
    const auto lead = static_cast<unsigned char>(character[0]);
    if (step.kind != Utf8Step::Kind::valid) {
      out += kReplacementCharacter;
    } else if (lead == '\n') {
      out += "\\n";
    } else if (lead < 0x20 || lead == 0x7f) {
      out += fmt::format("\\x{:02x}", lead);
    } else if (lead == 0xc2 && static_cast<unsigned char>(character[1]) < 0xa0) {  // C1: a terminal obeys these too
      out += fmt::format("\\u{:04x}", static_cast<unsigned char>(character[1]));
    } else {
      if (lead == '"' || lead == '\\') out += '\\';
      out += character;
    }
    text.remove_prefix(step.len);
  }
  return out;
}

void append_replaced(std::string_view text, std::string_view sought, std::string_view content, std::string& out) {
  for (std::size_t at; !sought.empty() && (at = text.find(sought)) != std::string_view::npos;) {
    out += text.substr(0, at);
    out += content;
    text.remove_prefix(at + sought.size());
  }
  out += text;
}

}  // namespace ops_transformer::llm
