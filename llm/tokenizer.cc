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

}  // namespace

struct Tokenizer::State {
  explicit State(const TokenizerData& data)
      : warnings(data.warnings),
        vocabulary(data.tokens, data.types),
        pre_name(data.pre),
        pre(data.pre),
        takes_whole_tokens(data.takes_whole_tokens),
        bos(data.bos),
        eos(data.eos),
        adds_bos(data.add_bos),
        adds_eos(data.add_eos),
        chat_template(data.chat_template) {
    // The tokens that the file names count as special whatever its list of types says.
    for (const auto& id : {data.bos, data.eos, data.eot, data.eom, data.padding}) mark(id, TokenType::control);
    mark(data.unknown, TokenType::unknown);
    for (const auto& id : {data.eot, data.eom, data.eos}) {
      if (id) ends.push_back(*id);
    }
    for (const std::string_view name : kTurnEnds) {
      const TokenId id = vocabulary.find(name);
      if (id != kNoToken && vocabulary.is_special(id)) ends.push_back(id);
    }
    encoder.emplace(vocabulary, data.merges);
    special.emplace(vocabulary);
  }

  void mark(std::optional<TokenId> id, TokenType type) {
    if (id && !vocabulary.is_special(*id)) vocabulary.set_type(*id, type);
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
  bool takes_whole_tokens;
  std::optional<TokenId> bos, eos;
  bool adds_bos, adds_eos;
  std::optional<std::string> chat_template;
  std::vector<TokenId> ends;
  std::optional<BytePairEncoder> encoder;
  std::optional<SpecialTokens> special;
};

Tokenizer Tokenizer::from_gguf(const ModelFile& file) {
  const TokenizerData data = read_tokenizer_gguf(file.metadata());
  const ModelTensor* embedding = file.find_tensor("token_embd.weight");
  if (embedding && embedding->rows() != data.tokens.size()) {
    throw InvalidFile(fmt::format("key 'tokenizer.ggml.tokens' has {} tokens, tensor 'token_embd.weight' has {} rows",
                                  data.tokens.size(), embedding->rows()));
  }
  return Tokenizer(data);
}

Tokenizer::Tokenizer(const TokenizerData& data) : state_(std::make_unique<State>(data)) {}
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
    if (state.takes_whole_tokens) {
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
bool Tokenizer::adds_bos() const noexcept { return state_->adds_bos; }
bool Tokenizer::adds_eos() const noexcept { return state_->adds_eos; }
std::string_view Tokenizer::pre_tokenizer() const noexcept { return state_->pre_name; }
const std::optional<std::string>& Tokenizer::chat_template() const noexcept { return state_->chat_template; }
const std::vector<std::string>& Tokenizer::warnings() const noexcept { return state_->warnings; }

}  // namespace ops_transformer::llm
