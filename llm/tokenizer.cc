// SPDX-License-Identifier: Apache-2.0
#include "llm/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "llm/bpe.h"
#include "llm/pre_tokenizer.h"
#include "llm/special_tokens.h"
#include "llm/utf8.h"
#include "llm/vocabulary.h"

namespace ops_transformer::llm {
namespace {

constexpr std::size_t kMaxTextBytes = std::size_t{1} << 31;

// Turn ends of common chat formats, for files that name only the end of a text.
constexpr std::array<std::string_view, 6> kTurnEnds = {"<|im_end|>",      "<|eot_id|>",    "<|eom_id|>",
                                                       "<|end_of_text|>", "<|endoftext|>", "<end_of_turn>"};

std::vector<TokenType> read_types(const GgufMetadata& metadata, std::size_t num_tokens,
                                  std::vector<std::string>& warnings) {
  constexpr std::string_view key = "tokenizer.ggml.token_type";
  const auto stored = metadata.get<std::vector<std::int32_t>>(key);
  if (!stored) {
    warnings.push_back(fmt::format("key '{}' is missing: every token is taken for plain text", key));
    return std::vector<TokenType>(num_tokens, TokenType::normal);
  }
  if (stored->size() != num_tokens) {
    throw InvalidFile(
        fmt::format("key '{}' has {} elements, tokenizer.ggml.tokens has {}", key, stored->size(), num_tokens));
  }
  std::vector<TokenType> types;
  types.reserve(num_tokens);
  for (const std::int32_t type : *stored) {
    if (type < 0 || type > static_cast<std::int32_t>(TokenType::byte)) {
      throw InvalidFile(fmt::format("key '{}': token {} has type {}, known are 0 to 6", key, types.size(), type));
    }
    types.push_back(static_cast<TokenType>(type));
  }
  return types;
}

Vocabulary read_vocabulary(const ModelFile& file, std::vector<std::string>& warnings) {
  const GgufMetadata& metadata = file.metadata();
  const auto model = metadata.require<std::string_view>("tokenizer.ggml.model");
  if (model != "gpt2") {
    throw InvalidFile(
        fmt::format("key 'tokenizer.ggml.model' names the unsupported tokenizer '{}'; known is gpt2", shown(model)));
  }
  const auto tokens = metadata.require<std::vector<std::string_view>>("tokenizer.ggml.tokens");
  if (tokens.empty()) throw InvalidFile("key 'tokenizer.ggml.tokens' is empty");
  const ModelTensor* embedding = file.find_tensor("token_embd.weight");
  if (embedding && embedding->rows() != tokens.size()) {
    throw InvalidFile(fmt::format("key 'tokenizer.ggml.tokens' has {} tokens, tensor 'token_embd.weight' has {} rows",
                                  tokens.size(), embedding->rows()));
  }
  return Vocabulary(tokens, read_types(metadata, tokens.size(), warnings));
}

std::string read_pre(const GgufMetadata& metadata, std::vector<std::string>& warnings) {
  const auto name = metadata.get<std::string>("tokenizer.ggml.pre");
  if (name) return *name;
  warnings.emplace_back(
      "key 'tokenizer.ggml.pre' is missing: text is cut by GPT-2's rule, which may not be this model's");
  return "default";
}

}  // namespace

struct Tokenizer::State {
  State(const ModelFile& file, const GgufMetadata& metadata)
      : vocabulary(read_vocabulary(file, warnings)),
        pre_name(read_pre(metadata, warnings)),
        pre(pre_name),
        bos(read_id(metadata, "tokenizer.ggml.bos_token_id", TokenType::control)),
        eos(read_id(metadata, "tokenizer.ggml.eos_token_id", TokenType::control)),
        unknown(read_id(metadata, "tokenizer.ggml.unknown_token_id", TokenType::unknown)),
        padding(read_id(metadata, "tokenizer.ggml.padding_token_id", TokenType::control)),
        adds_bos(metadata.get_or("tokenizer.ggml.add_bos_token", pre.adds_bos_by_default())),
        adds_eos(metadata.get_or("tokenizer.ggml.add_eos_token", false)),
        chat_template(metadata.get<std::string>("tokenizer.chat_template")) {
    for (const std::string_view key : {"tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
      if (const auto id = read_id(metadata, key, TokenType::control)) ends.push_back(*id);
    }
    if (eos) ends.push_back(*eos);
    for (const std::string_view name : kTurnEnds) {
      const TokenId id = vocabulary.find(name);
      if (id != kNoToken && vocabulary.is_special(id)) ends.push_back(id);
    }
    if (adds_bos && !bos) throw InvalidFile("key 'tokenizer.ggml.bos_token_id' is missing, the model asks for BOS");
    if (adds_eos && !eos) throw InvalidFile("key 'tokenizer.ggml.eos_token_id' is missing, the model asks for EOS");
  }

  /// The token named by a key; it counts as special whatever the list of types says.
  std::optional<TokenId> read_id(const GgufMetadata& metadata, std::string_view key, TokenType type) {
    const auto id = metadata.get<std::uint32_t>(key);
    if (!id) return std::nullopt;
    if (*id >= vocabulary.size()) {
      throw InvalidFile(fmt::format("key '{}' is {}, the vocabulary has {} tokens", key, *id, vocabulary.size()));
    }
    const auto token = static_cast<TokenId>(*id);
    if (!vocabulary.is_special(token)) vocabulary.set_type(token, type);
    return token;
  }

  void check(TokenId id) const {
    if (id < 0 || static_cast<std::size_t>(id) >= vocabulary.size()) {
      throw InvalidArgument(fmt::format("ids: token {} is outside the vocabulary of {} tokens", id, vocabulary.size()));
    }
  }

  std::vector<std::string> warnings;
  Vocabulary vocabulary;
  std::string pre_name;
  PreTokenizer pre;
  std::optional<TokenId> bos, eos, unknown, padding;
  bool adds_bos, adds_eos;
  std::optional<std::string> chat_template;
  std::vector<TokenId> ends;
  std::optional<BytePairEncoder> encoder;
  std::optional<SpecialTokens> special;
};

Tokenizer Tokenizer::from_gguf(const ModelFile& file) {
  const GgufMetadata& metadata = file.metadata();
  auto state = std::make_unique<State>(file, metadata);
  state->encoder.emplace(state->vocabulary, metadata.require<std::vector<std::string_view>>("tokenizer.ggml.merges"));
  state->special.emplace(state->vocabulary);
  return Tokenizer(std::move(state));
}

Tokenizer::Tokenizer(std::unique_ptr<State> state) noexcept : state_(std::move(state)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

std::vector<TokenId> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  if (text.size() > kMaxTextBytes) {
    throw InvalidArgument(fmt::format("text: {} bytes, the limit is {}", text.size(), kMaxTextBytes));
  }
  const State& state = *state_;
  std::vector<TokenId> ids;
  std::size_t dropped = 0;
  BytePairEncoder::Scratch scratch;
  const auto encode_piece = [&](std::string_view piece) {
    if (state.pre.takes_whole_tokens()) {
      const TokenId whole = state.vocabulary.find(piece);
      if (whole != kNoToken && !state.vocabulary.is_special(whole)) return ids.push_back(whole);
    }
    dropped += state.encoder->encode(piece, scratch, ids);
  };
  std::size_t encoded = 0;  // bytes of the text that are tokens already
  const auto encode_plain = [&](std::size_t end) {
    if (end > encoded) state.pre.split(text.substr(encoded, end - encoded), encode_piece);
    encoded = end;
  };
  const auto find_special = [&](std::size_t begin, std::size_t end) {
    while (begin < end) {
      const auto found = state.special->find(text.substr(begin, end - begin), state.vocabulary);
      if (found.id == kNoToken) return;
      encode_plain(begin + found.pos);
      ids.push_back(found.id);
      begin = encoded += state.vocabulary.bytes(found.id).size();
    }
  };
  if (options.parse_special) {
    std::size_t begin = 0;
    for (const TextRange& literal : options.literal) {
      if (literal.begin < begin || literal.end < literal.begin || literal.end > text.size()) {
        throw InvalidArgument(fmt::format("literal: bytes {} to {}, must be within {} and {}", literal.begin,
                                          literal.end, begin, text.size()));
      }
      find_special(begin, literal.begin);
      begin = literal.end;
    }
    find_special(begin, text.size());
  }
  encode_plain(text.size());
  if (options.add_special) {
    if (state.adds_bos && (ids.empty() || ids.front() != *state.bos)) ids.insert(ids.begin(), *state.bos);
    if (state.adds_eos && (ids.empty() || ids.back() != *state.eos)) ids.push_back(*state.eos);
  }
  if (options.dropped_bytes) *options.dropped_bytes = dropped;
  return ids;
}

std::string Tokenizer::decode(std::span<const TokenId> ids, const DecodeOptions& options) const {
  std::string text;
  for (const TokenId id : ids) {
    state_->check(id);
    if (options.skip_special && state_->vocabulary.type(id) == TokenType::control) continue;
    text += state_->vocabulary.bytes(id);
  }
  return text;
}

std::size_t Tokenizer::vocab_size() const noexcept { return state_->vocabulary.size(); }

std::string_view Tokenizer::token_bytes(TokenId id) const {
  state_->check(id);
  return state_->vocabulary.bytes(id);
}

std::optional<TokenId> Tokenizer::find_token(std::string_view bytes) const noexcept {
  const TokenId id = state_->vocabulary.find(bytes);
  return id == kNoToken ? std::nullopt : std::optional(id);
}

bool Tokenizer::is_special(TokenId id) const noexcept {
  return id >= 0 && static_cast<std::size_t>(id) < vocab_size() && state_->vocabulary.is_special(id);
}

bool Tokenizer::is_end_of_generation(TokenId id) const noexcept {
  return std::find(state_->ends.begin(), state_->ends.end(), id) != state_->ends.end();
}

std::optional<TokenId> Tokenizer::bos() const noexcept { return state_->bos; }
std::optional<TokenId> Tokenizer::eos() const noexcept { return state_->eos; }
std::optional<TokenId> Tokenizer::unknown() const noexcept { return state_->unknown; }
std::optional<TokenId> Tokenizer::padding() const noexcept { return state_->padding; }
bool Tokenizer::adds_bos() const noexcept { return state_->adds_bos; }
bool Tokenizer::adds_eos() const noexcept { return state_->adds_eos; }
std::string_view Tokenizer::pre_tokenizer() const noexcept { return state_->pre_name; }
const std::optional<std::string>& Tokenizer::chat_template() const noexcept { return state_->chat_template; }
const std::vector<std::string>& Tokenizer::warnings() const noexcept { return state_->warnings; }

}  // namespace ops_transformer::llm
