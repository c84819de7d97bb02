// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "llm/formats/gguf_metadata.h"
#include "llm/tokenizer/token_id.h"
#include "llm/tokenizer/token_type.h"
#include "ops_transformer/base/export.h"

namespace ops_transformer::llm {

/// Many short strings in one block of memory.
class StringList {
 public:
  void reserve(std::size_t count, std::size_t bytes) {
    ends_.reserve(count);
    bytes_.reserve(bytes);
  }
  void push_back(std::string_view text) {
    bytes_ += text;
    ends_.push_back(bytes_.size());
  }
  std::size_t size() const noexcept { return ends_.size(); }
  bool empty() const noexcept { return ends_.empty(); }
  std::size_t total_bytes() const noexcept { return bytes_.size(); }
  std::string_view operator[](std::size_t i) const noexcept {
    const std::size_t begin = i > 0 ? ends_[i - 1] : 0;
    return std::string_view(bytes_).substr(begin, ends_[i] - begin);
  }

 private:
  std::string bytes_;
  std::vector<std::size_t> ends_;
};

/// How pieces of text become tokens; in brackets GGUF's name, `tokenizer.ggml.model`.
enum class TokenizerModel : std::uint8_t {
  byte_level_bpe,     // (gpt2) merges over bytes; tokens are written in GPT-2's printable alphabet
  sentencepiece_bpe,  // (llama) merges over characters, by score or by a list; U+2581 is a space, <0x0A> a byte
  unigram,            // (t5) the most likely cut by scores; tokens as sentencepiece_bpe
};

/// A change to text before it is cut, as tokenizer.json's "normalizer" has them.
struct NormalizerStep {
  enum class Kind : std::uint8_t { nfc, nfd, nfkc, nfkd, lowercase, strip, replace, prepend } kind;
  std::string pattern{};           // replace: what is sought
  std::string content{};           // replace, prepend: what is put there
  bool regex = false;              // replace: `pattern` is a regular expression
  bool left = true, right = true;  // strip: which ends
  bool operator==(const NormalizerStep&) const = default;
};

/// A rule that cuts text, as tokenizer.json's "pre_tokenizer" has them; each cuts the pieces of the one before.
struct SplitStep {
  /// byte_level: the rules that follow see the text in GPT-2's printable alphabet.
  enum class Kind : std::uint8_t { literal, regex, prefix_space, metaspace, byte_level } kind;
  /// What becomes of a match.
  enum class Behavior : std::uint8_t { isolated, removed, merged_with_previous, merged_with_next, contiguous };
  std::string pattern{};  // literal, regex
  Behavior behavior = Behavior::isolated;
  bool invert = false;  // the text between matches counts as the match
  // metaspace: spaces become U+2581; one is put in front …
  bool prefix_always = false, prefix_first = false;  // … of each stretch of text, of the first alone, or of none
  bool split = true;                                 // and the text is cut before each
  bool operator==(const SplitStep&) const = default;
};

/// How an added token is found in text. Tokens without an entry in TokenizerData::added have none of these.
struct AddedToken {
  TokenId id;
  bool strip_left = false, strip_right = false;  // white space beside it is swallowed
  bool single_word = false;                      // only where no letter, digit or underscore stands beside it
  bool normalized = false;                       // sought in text that the normalizer has been over
};

/// The name in `tokenizer.ggml.pre` of files whose rules stand in `tokenizer.huggingface.json`.
inline constexpr std::string_view kHuggingFaceRules = "huggingface";

/// All that a file says of its tokenizer, whatever the file's format. Members name their GGUF keys, `tokenizer.ggml.…`.
struct TokenizerData {
  TokenizerModel model = TokenizerModel::byte_level_bpe;  // model
  StringList tokens;                                      // tokens: as the file writes them
  std::vector<TokenType> types;                           // token_type: one per token
  std::vector<double> scores;                             // scores: one per token, or none; unigram needs them
  bool sums_in_double = false;    // sums of scores, as `tokenizers` has them; SentencePiece has float (no key)
  StringList merges;              // merges: "left right", best first
  std::vector<AddedToken> added;  // those with flags

  /// pre: GGUF's name of the rules, which says all of the next three; kHuggingFaceRules where only `huggingface_json`
  /// can say them.
  std::string pre;
  std::vector<NormalizerStep> normalizers;
  std::vector<SplitStep> splits;
  bool takes_whole_tokens = false;  // a piece that is itself a token is taken whole, whatever the merges say
  /// tokenizer.huggingface.json: the text of tokenizer.json, where GGUF's own keys can't say its rules; else empty.
  std::string huggingface_json;

  bool add_space_prefix = false;           // add_space_prefix: a space before each stretch of text, …
  bool space_prefix_first_only = false;    // … or before the first alone (no key)
  bool space_prefix_unless_space = false;  // not where the text begins with one (no key)
  bool remove_extra_whitespaces = false;   // remove_extra_whitespaces: runs become one space, none at the ends
  std::string charsmap;                    // precompiled_charsmap: SentencePiece's compiled normalizer
  bool fuse_unknown = true;                // neighbouring unknown characters are one unknown token (no key)

  std::optional<TokenId> bos, eos, eot, eom, unknown, padding;  // …_token_id
  bool add_bos = false, add_eos = false;                        // add_bos_token, add_eos_token
  std::optional<std::string> chat_template;                     // tokenizer.chat_template

  std::vector<std::string> warnings;  // what was left open and assumed, one sentence each

  /// Appends tokens "[PAD0]", "[PAD1]", … of type unused until there are `size`: embeddings often have more rows.
  OPS_TRANSFORMER_API void pad_to(std::size_t size);
};

/// Reads the keys `tokenizer.…`. Throws InvalidFile, naming the key: a missing list, another tokenizer model, an
/// unknown pre-tokenizer, lists that do not fit each other, a token id outside the vocabulary.
OPS_TRANSFORMER_API TokenizerData read_tokenizer_gguf(const GgufMetadata& metadata);

/// Adds the keys from which read_tokenizer_gguf makes the same tokenizer, for data that has no charsmap.
OPS_TRANSFORMER_API void write_tokenizer_gguf(const TokenizerData& data, GgufMetadataBuilder& metadata);

}  // namespace ops_transformer::llm
