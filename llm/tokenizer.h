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

#include "llm/model_file.h"
#include "llm/token_id.h"
#include "llm/tokenizer_data.h"
#include "ops_transformer/base/export.h"

namespace ops_transformer::llm {

/// The bytes [begin, end) of a text.
struct TextRange {
  std::size_t begin, end;
};

struct EncodeOptions {
  bool add_special = false;    // BOS in front and EOS behind, where the model asks for them
  bool parse_special = false;  // the texts of control and user-defined tokens become those tokens
  /// With parse_special: parts of the text, ascending and disjoint, that no special token is made from or reaches into.
  std::span<const TextRange> literal{};
  std::size_t* dropped_bytes = nullptr;  // out: bytes that no token of this vocabulary stands for, which were left out
};

struct DecodeOptions {
  bool skip_special = true;  // control tokens give no text
};

/// The byte-level BPE tokenizer ("gpt2") of a GGUF file, with the pre-tokenizers smollm, default (GPT-2's) and
/// llama-bpe. Holds no part of the file. Any number of threads may use one object.
class OPS_TRANSFORMER_API Tokenizer {
 public:
  /// Throws InvalidFile, naming the key: another tokenizer model, an unknown pre-tokenizer, a list that does not fit
  /// the others or the rows of token_embd.weight, a token id outside the vocabulary.
  static Tokenizer from_gguf(const ModelFile& file);

  /// From what any format says of a tokenizer. Throws InvalidFile where its parts do not fit each other.
  explicit Tokenizer(const TokenizerData& data);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  /// Any bytes, at most 2^31 of them (else InvalidArgument, as for literal ranges out of order or of bounds). What is
  /// not UTF-8 is encoded byte by byte, and decode gives the same bytes back, but for those counted in `dropped_bytes`.
  /// Without parse_special no special token is ever made from text. With add_special there is exactly one BOS even
  /// where the text brings its own.
  std::vector<TokenId> encode(std::string_view text, const EncodeOptions& options = {}) const;

  /// The tokens' bytes one after another: UTF-8 where the tokens make whole characters. Throws InvalidArgument for an
  /// id outside the vocabulary.
  std::string decode(std::span<const TokenId> ids, const DecodeOptions& options = {}) const;

  std::size_t vocab_size() const noexcept;
  /// The bytes that a token stands for; its name for special tokens. Throws InvalidArgument as decode does.
  std::string_view token_bytes(TokenId id) const;
  /// The token whose bytes or name these are.
  std::optional<TokenId> find_token(std::string_view bytes) const noexcept;
  /// Control, user-defined and unknown tokens. False for an id outside the vocabulary, as is the next.
  bool is_special(TokenId id) const noexcept;
  /// Tokens that end a turn or a text: EOS, EOT and EOM of the file, and the names that common chat formats end turns
  /// with.
  bool is_end_of_generation(TokenId id) const noexcept;

  std::optional<TokenId> bos() const noexcept;
  std::optional<TokenId> eos() const noexcept;
  bool adds_bos() const noexcept;
  bool adds_eos() const noexcept;
  /// The name in tokenizer.ggml.pre.
  std::string_view pre_tokenizer() const noexcept;
  /// The text of tokenizer.chat_template.
  const std::optional<std::string>& chat_template() const noexcept;
  /// What the file leaves open and was assumed, one sentence each; for the caller to show.
  const std::vector<std::string>& warnings() const noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ops_transformer::llm
