// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "llm/formats/model_file.h"
#include "llm/tokenizer/added_tokens.h"
#include "llm/tokenizer/token_id.h"
#include "llm/tokenizer/tokenizer_data.h"
#include "ops_transformer/base/export.h"

namespace ops_transformer::llm {

struct EncodeOptions {
  bool add_special = false;    // BOS in front and EOS behind, where the model asks for them
  bool parse_special = false;  // the names of control tokens become those tokens
  /// With parse_special: parts of the text, ascending and disjoint, that no special token is made from or reaches into.
  std::span<const TextRange> literal{};
  std::size_t* dropped_bytes = nullptr;  // out: bytes that no token of this vocabulary stands for, which were left out
};

struct DecodeOptions {
  bool skip_special = true;  // control tokens give no text
  /// The token before the first, where the ids continue others. A tokenizer that puts a space before a text takes it
  /// away again from the first token of a stretch of text, and only from that.
  std::optional<TokenId> previous{};
};

/// A model's tokenizer: byte-level BPE, SentencePiece's BPE or unigram. Holds no part of the file. Any number of
/// threads may use one object.
class OPS_TRANSFORMER_API Tokenizer {
 public:
  /// Throws what read_tokenizer_gguf throws, and InvalidFile where the tokens are not as many as the rows of
  /// token_embd.weight.
  static Tokenizer from_gguf(const ModelFile& file);

  /// Reads a GGUF file, a folder of safetensors, or a tokenizer.json with the tokenizer_config.json beside it. Throws
  /// what from_gguf and read_tokenizer_json throw, and SystemFailure where a file can't be read.
  static Tokenizer load(const std::string& path);

  /// From what any format says of a tokenizer. Throws InvalidFile where its parts do not fit each other.
  explicit Tokenizer(const TokenizerData& data);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  /// Any bytes, at most 2^31 of them (else InvalidArgument, as for literal ranges out of order or of bounds). What is
  /// not UTF-8 is encoded byte by byte, and decode gives the same bytes back, but for what the model's normalizer
  /// changes and those counted in `dropped_bytes`. Without parse_special no control token is ever made from text, and
  /// the unknown token only for characters that have none. With add_special there is exactly one BOS even where the
  /// text brings its own. Throws SystemFailure where a pattern of the file takes too many steps.
  std::vector<TokenId> encode(std::string_view text, const EncodeOptions& options = {}) const;

  /// The tokens' bytes one after another: UTF-8 where the tokens make whole characters. Throws InvalidArgument for an
  /// id outside the vocabulary.
  std::string decode(std::span<const TokenId> ids, const DecodeOptions& options = {}) const;

  std::size_t vocab_size() const noexcept;
  /// The bytes that a token stands for; its name for special tokens. Throws InvalidArgument as decode does.
  std::string_view token_bytes(TokenId id) const;
  /// The token whose bytes or name these are.
  std::optional<TokenId> find_token(std::string_view bytes) const noexcept;
  /// Control and unknown tokens. False for an id outside the vocabulary, as is the next.
  bool is_special(TokenId id) const noexcept;
  /// Tokens that end a turn or a text: EOS, EOT and EOM of the file, and the names that common chat formats end turns
  /// with.
  bool is_end_of_generation(TokenId id) const noexcept;

  std::optional<TokenId> bos() const noexcept;
  std::optional<TokenId> eos() const noexcept;
  bool adds_bos() const noexcept;
  bool adds_eos() const noexcept;
  /// The name in tokenizer.ggml.pre; empty where the rules have none.
  std::string_view pre_tokenizer() const noexcept;
  /// The text of tokenizer.chat_template.
  const std::optional<std::string>& chat_template() const noexcept;
  /// What the file leaves open and was assumed, one sentence each; for the caller to show.
  const std::vector<std::string>& warnings() const noexcept;

 private:
  struct State;
  class Encoding;
  std::unique_ptr<State> state_;
};

}  // namespace ops_transformer::llm
