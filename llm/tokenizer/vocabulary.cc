// SPDX-License-Identifier: Apache-2.0
#include "llm/tokenizer/vocabulary.h"

#include <fmt/format.h>

#include <bit>
#include <chrono>
#include <cstring>
#include <limits>
#include <utility>

#include "llm/tokenizer/utf8.h"
#include "ops_transformer/base/error.h"

namespace ops_transformer::llm {
namespace {

constexpr bool prints_as_itself(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || (byte >= 0xae && byte <= 0xff);
}

/// GPT-2's alphabet: a printable byte is the character of its number, the others follow from U+0100 on in their order.
constexpr int kAlphabetEnd = 0x144;
constexpr std::array<std::int16_t, kAlphabetEnd> kByteOfCharacter = [] {
  std::array<std::int16_t, kAlphabetEnd> table{};
  table.fill(-1);
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    table[static_cast<std::size_t>(prints_as_itself(byte) ? byte : next++)] = static_cast<std::int16_t>(byte);
  }
  return table;
}();

constexpr std::array<std::uint16_t, 256> kCharacterOfByte = [] {
  std::array<std::uint16_t, 256> table{};
  for (std::size_t character = 0; character < kAlphabetEnd; ++character) {
    const int byte = kByteOfCharacter[character];
    if (byte >= 0) table[static_cast<std::size_t>(byte)] = static_cast<std::uint16_t>(character);
  }
  return table;
}();

std::uint64_t hash_bytes(std::string_view bytes, std::uint64_t seed) noexcept {
  std::uint64_t hash = seed ^ bytes.size();
  const auto mix = [&](std::uint64_t word) {
    hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 29;
  };
  std::size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) {
    std::uint64_t word;
    std::memcpy(&word, bytes.data() + i, 8);
    mix(word);
  }
  std::uint64_t tail = 0;
  std::memcpy(&tail, bytes.data() + i, bytes.size() - i);
  mix(tail);
  return hash * 0xbf58476d1ce4e5b9u >> 20;
}

/// The byte that SentencePiece's "<0x0A>" stands for.
char byte_of(std::string_view text, std::size_t id) {
  const auto digit = [](char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                  : 16;
  };
  if (text.size() == 6 && text.starts_with("<0x") && text[5] == '>' && digit(text[3]) < 16 && digit(text[4]) < 16) {
    return static_cast<char>(digit(text[3]) * 16 + digit(text[4]));
  }
  throw InvalidFile(fmt::format("token {} '{}' is of type byte, but not written as <0x00> to <0xFF>", id, shown(text)));
}

}  // namespace

std::uint64_t hash_seed() noexcept {
  static const char anchor = 0;
  return (reinterpret_cast<std::uintptr_t>(&anchor) >> 12) * 0x9e3779b97f4a7c15u ^
         static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
}

void append_byte_level(std::string_view text, std::string& out) {
  const std::size_t begin = out.size();
  for (std::size_t pos = 0; pos < text.size();) {
    const auto lead = static_cast<unsigned char>(text[pos]);
    int character = lead;
    if (lead >= 0x80) {
      const Utf8Step step = utf8_step(text.substr(pos));
      const bool two = step.kind == Utf8Step::Kind::valid && step.len == 2;
      character = two ? (lead & 0x1f) << 6 | (text[pos + 1] & 0x3f) : kAlphabetEnd;
    }
    const int byte = character < kAlphabetEnd ? kByteOfCharacter[static_cast<std::size_t>(character)] : -1;
    if (byte < 0) {
      out.resize(begin);
      out += text;
      return;
    }
    out += static_cast<char>(byte);
    pos += lead < 0x80 ? 1 : 2;
  }
}

void append_printable(std::string_view bytes, std::string& out) {
  for (const char c : bytes) {
    const unsigned character = kCharacterOfByte[static_cast<unsigned char>(c)];
    if (character >= 0x80) out += static_cast<char>(0xc0 | character >> 6);
    out += static_cast<char>(character < 0x80 ? character : 0x80 | (character & 0x3f));
  }
}

void append_spaces(std::string_view text, std::string& out) { append_replaced(text, kSpaceSymbol, " ", out); }

void Vocabulary::append_bytes(std::string_view text, std::string& out) const {
  if (model_ == TokenizerModel::byte_level_bpe) {
    append_byte_level(text, out);
  } else {
    append_spaces(text, out);
  }
}

Vocabulary::Vocabulary(const StringList& texts, std::vector<TokenType> types, TokenizerModel model)
    : model_(model), types_(std::move(types)), seed_(hash_seed()) {
  const std::size_t total = texts.total_bytes();
  if (total > std::numeric_limits<std::uint32_t>::max() || texts.size() >= (1u << 30)) {
    throw InvalidFile(
        fmt::format("key 'tokenizer.ggml.tokens' has {} tokens of {} bytes together, the limits are 2^30 and "
                    "2^32",
                    texts.size(), total));
  }
  bytes_.reserve(total);
  offsets_.reserve(texts.size() + 1);
  for (std::size_t i = 0; i < texts.size(); ++i) {
    offsets_.push_back(static_cast<std::uint32_t>(bytes_.size()));
    const auto id = static_cast<TokenId>(i);
    if (type(id) == TokenType::byte) {
      bytes_ += byte_of(texts[i], i);
    } else if (type(id) == TokenType::normal || type(id) == TokenType::undefined ||
               (type(id) == TokenType::user_defined && model_ != TokenizerModel::byte_level_bpe)) {
      append_bytes(texts[i], bytes_);
    } else {
      bytes_ += texts[i];
    }
  }
  offsets_.push_back(static_cast<std::uint32_t>(bytes_.size()));
  bytes_.shrink_to_fit();
  table_.assign(std::bit_ceil(texts.size() * 2 + 1), kNoToken);
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const auto id = static_cast<TokenId>(i);
    TokenId& entry = table_[slot(bytes(id))];
    const auto rank = [&](TokenId token) {
      const TokenType t = type(token);
      return t == TokenType::normal ? 0 : is_text(token) ? 1 : t == TokenType::byte ? 3 : 2;
    };
    if (entry == kNoToken || rank(id) < rank(entry)) entry = id;
  }
}

std::size_t Vocabulary::slot(std::string_view bytes_sought) const noexcept {
  const std::size_t mask = table_.size() - 1;
  std::size_t at = hash_bytes(bytes_sought, seed_) & mask;
  while (table_[at] != kNoToken && bytes(table_[at]) != bytes_sought) at = (at + 1) & mask;
  return at;
}

TokenId Vocabulary::find(std::string_view bytes_sought) const noexcept { return table_[slot(bytes_sought)]; }

}  // namespace ops_transformer::llm
