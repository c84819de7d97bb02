// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "llm/formats/model_file.h"
#include "llm/tokenizer/tokenizer.h"
#include "tests/support/gguf_writer.h"

namespace ops_transformer::test {

/// GPT-2's printable form of bytes, from its definition: printable Latin-1 bytes are themselves, the others in their
/// order are the characters from U+0100 on.
inline std::string byte_level(std::string_view bytes) {
  static const std::vector<std::string> kCharacters = [] {
    std::vector<std::string> characters;
    int next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      const bool printable = (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte != 0xad);
      const int character = printable ? byte : next++;
      characters.emplace_back(1, static_cast<char>(character < 0x80 ? character : 0xc0 | character >> 6));
      if (character >= 0x80) characters.back() += static_cast<char>(0x80 | (character & 0x3f));
    }
    return characters;
  }();
  std::string out;
  for (const char c : bytes) out += kCharacters[static_cast<unsigned char>(c)];
  return out;
}

/// The parts of a small byte-level vocabulary, to change before a file is made of them: three control tokens, a
/// user-defined one, all 256 bytes, then what the merges make.
struct SmallVocabulary {
  std::vector<std::string> tokens = {"<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool>"};
  std::vector<std::int32_t> types = {3, 3, 3, 4};
  std::vector<std::string> merges;
  std::string model = "gpt2";
  std::string pre = "smollm";  // empty: left out
  bool has_types = true;

  SmallVocabulary() {
    for (int byte = 0; byte < 256; ++byte) add(std::string(1, static_cast<char>(byte)));
    for (const auto& [left, right] : std::vector<std::pair<std::string, std::string>>{{" ", "t"},
                                                                                      {"h", "e"},
                                                                                      {" t", "he"},
                                                                                      {"l", "l"},
                                                                                      {"e", "r"},
                                                                                      {"he", "ll"},
                                                                                      {"hell", "o"},
                                                                                      {" ", " "},
                                                                                      {"  ", "  "},
                                                                                      {"1", "2"},
                                                                                      {"12", "3"},
                                                                                      {"\xe6", "\xad"},
                                                                                      {"\xe6\xad", "\xaa"},
                                                                                      {"\n", "\n"}}) {
      merge(left, right);
    }
  }
  void add(std::string_view bytes, std::int32_t type = 1) {
    tokens.push_back(type == 1 ? byte_level(bytes) : std::string(bytes));
    types.push_back(type);
  }
  void merge(std::string_view left, std::string_view right) {
    merges.push_back(byte_level(left) + " " + byte_level(right));
    add(std::string(left) + std::string(right));
  }
  /// The lists and names; ids and templates are for the caller to add.
  GgufWriter writer() const {
    GgufWriter writer;
    writer.add_string("tokenizer.ggml.model", model).add_strings("tokenizer.ggml.tokens", tokens);
    writer.add_strings("tokenizer.ggml.merges", merges);
    if (has_types) writer.add_array("tokenizer.ggml.token_type", 5, types);
    if (!pre.empty()) writer.add_string("tokenizer.ggml.pre", pre);
    return writer;
  }
};

inline llm::Tokenizer make_tokenizer(const GgufWriter& writer) {
  const AlignedBytes bytes(writer.bytes());
  return llm::Tokenizer::from_gguf(llm::ModelFile::from_memory(bytes.span()));
}

/// A tokenizer of SmallVocabulary whose file is gone already.
class SmallTokenizer {
 public:
  explicit SmallTokenizer(const std::string& pre = "smollm") : tokenizer_(make(pre)) {}
  const llm::Tokenizer& tokenizer() const noexcept { return tokenizer_; }

 private:
  static llm::Tokenizer make(const std::string& pre) {
    SmallVocabulary vocabulary;
    vocabulary.pre = pre;
    GgufWriter writer = vocabulary.writer();
    writer.add_u32("tokenizer.ggml.bos_token_id", 1).add_u32("tokenizer.ggml.eos_token_id", 2);
    return make_tokenizer(writer);
  }
  llm::Tokenizer tokenizer_;
};

}  // namespace ops_transformer::test
