// SPDX-License-Identifier: Apache-2.0
#include "llm/tokenizer/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <utility>

#include "llm/tokenizer/bpe.h"
#include "llm/tokenizer/pre_tokenizer.h"
#include "llm/tokenizer/sentencepiece_bpe.h"
#include "llm/tokenizer/text_normalizer.h"
#include "llm/tokenizer/tokenizer_json.h"
#include "llm/tokenizer/unigram.h"
#include "llm/tokenizer/utf8.h"
#include "llm/tokenizer/vocabulary.h"

namespace ops_transformer::llm {
namespace {

constexpr std::size_t kMaxTextBytes = std::size_t{1} << 31;

// Turn ends of common chat formats, for files that name only the end of a text.
constexpr std::array<std::string_view, 6> kTurnEnds = {"<|im_end|>",      "<|eot_id|>",    "<|eom_id|>",
                                                       "<|end_of_text|>", "<|endoftext|>", "<end_of_turn>"};
// Some files have the marks of turns as text, which would let a message forge them.
constexpr std::array<std::string_view, 7> kTurnMarks = {
    "<|im_start|>", "<|start_header_id|>", "<|end_header_id|>", "<|begin_of_text|>", "<start_of_turn>", "[INST]",
    "[/INST]"};

void check(const TokenizerData& data) {
  const std::size_t num_tokens = data.tokens.size();
  if (data.types.size() != num_tokens || (!data.scores.empty() && data.scores.size() != num_tokens)) {
    throw InvalidFile(fmt::format("the tokenizer has {} tokens, {} types and {} scores", num_tokens, data.types.size(),
                                  data.scores.size()));
  }
  const auto check_id = [&](std::string_view name, std::optional<TokenId> id) {
    if (id && (*id < 0 || static_cast<std::size_t>(*id) >= num_tokens)) {
      throw InvalidFile(
          fmt::format("the tokenizer's {} token is {}, the vocabulary has {} tokens", name, *id, num_tokens));
    }
  };
  check_id("BOS", data.bos);
  check_id("EOS", data.eos);
  check_id("EOT", data.eot);
  check_id("EOM", data.eom);
  check_id("unknown", data.unknown);
  check_id("padding", data.padding);
  for (const AddedToken& token : data.added) check_id("added", token.id);
  if (data.add_bos && !data.bos) throw InvalidFile("the tokenizer asks for BOS, but names no such token");
  if (data.add_eos && !data.eos) throw InvalidFile("the tokenizer asks for EOS, but names no such token");
  for (const double score : data.scores) {
    if (!std::isfinite(score)) throw InvalidFile(fmt::format("the tokenizer has the score {}", score));
  }
  if (data.scores.empty() && (data.model == TokenizerModel::unigram ||
                              (data.model == TokenizerModel::sentencepiece_bpe && data.merges.empty()))) {
    throw InvalidFile("the tokenizer's tokens have no scores");
  }
}

}  // namespace

struct Tokenizer::State {
  explicit State(const TokenizerData& data)
      : warnings(data.warnings),
        vocabulary((check(data), data.tokens), data.types, data.model),
        pre_name(data.pre),
        normalizer(data),
        pre(data.splits),
        takes_whole_tokens(data.takes_whole_tokens),
        has_space_symbols(data.model != TokenizerModel::byte_level_bpe),
        strips_each(data.add_space_prefix && !data.space_prefix_first_only),
        strips_first(data.add_space_prefix),
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
    const auto turn_mark = [&](std::string_view name) {
      const TokenId id = vocabulary.find(name);
      if (id != kNoToken && vocabulary.type(id) == TokenType::user_defined) mark(id, TokenType::control);
      return id != kNoToken && vocabulary.is_special(id) ? id : kNoToken;
    };
    for (const std::string_view name : kTurnMarks) turn_mark(name);
    for (const std::string_view name : kTurnEnds) {
      if (const TokenId id = turn_mark(name); id != kNoToken) ends.push_back(id);
    }
    for (const SplitStep& step : data.splits) {
      strips_each |= step.kind == SplitStep::Kind::metaspace && step.prefix_always;
      strips_first |= strips_each || (step.kind == SplitStep::Kind::metaspace && step.prefix_first);
    }
    find_added_tokens(data);
    make_encoder(data);
  }

  void mark(std::optional<TokenId> id, TokenType type) {
    if (id && !vocabulary.is_special(*id)) vocabulary.set_type(*id, type);
  }

  void find_added_tokens(const TokenizerData& data) {
    std::vector<AddedTokens::Token> raw, normalized, user_defined;
    for (const AddedToken& flags : data.added) {
      const bool special = vocabulary.is_special(flags.id);
      if (!special && !vocabulary.is_text(flags.id)) continue;
      std::string text(data.tokens[static_cast<std::size_t>(flags.id)]);
      if (flags.normalized) {
        // SentencePiece compares what it has made of the text; tokenizer.json normalizes these names as well.
        text = data.normalizers.empty() ? std::string(vocabulary.bytes(flags.id)) : normalizer.apply(text, true, {});
      }
      (flags.normalized ? normalized : raw).push_back({std::move(text), flags, special});
    }
    if (!data.charsmap.empty() || data.remove_extra_whitespaces) {
      for (TokenId id = 0; id < static_cast<TokenId>(vocabulary.size()); ++id) {
        if (vocabulary.type(id) != TokenType::user_defined) continue;
        user_defined.push_back({std::string(vocabulary.bytes(id)), {.id = id}, false});
      }
    }
    raw_tokens = AddedTokens(raw);
    normalized_tokens = AddedTokens(normalized);
    untouched_tokens = AddedTokens(user_defined);
    for (const auto& token : raw) {
      if (!token.special) raw_user_defined.push_back(token.flags.id);
    }
    std::sort(raw_user_defined.begin(), raw_user_defined.end());
  }

  void make_encoder(const TokenizerData& data) {
    if (data.model == TokenizerModel::byte_level_bpe) {
      merges.emplace(vocabulary, data.merges);
      return;
    }
    const Fallback fallback(vocabulary, data.unknown, data.fuse_unknown);
    if (data.model == TokenizerModel::unigram) {
      unigram.emplace(vocabulary, data, fallback);
    } else if (!data.merges.empty()) {
      merges.emplace(vocabulary, data.merges, fallback);
    } else {
      scores.emplace(vocabulary, data.scores, fallback);
    }
  }

  void check_id(TokenId id) const {
    if (id < 0 || static_cast<std::size_t>(id) >= vocabulary.size()) {
      throw InvalidArgument(fmt::format("ids: token {} is outside the vocabulary of {} tokens", id, vocabulary.size()));
    }
  }

  /// Whether text that follows the token is a stretch of its own, which gets the space in front.
  bool ends_stretch(TokenId id) const {
    return vocabulary.type(id) == TokenType::control ||
           std::binary_search(raw_user_defined.begin(), raw_user_defined.end(), id);
  }

  std::vector<std::string> warnings;
  Vocabulary vocabulary;
  std::string pre_name;
  TextNormalizer normalizer;
  PreTokenizer pre;
  bool takes_whole_tokens, has_space_symbols;
  bool strips_each, strips_first;  // decode takes a space away: from each stretch of text, from the first
  std::optional<TokenId> bos, eos;
  bool adds_bos, adds_eos;
  std::optional<std::string> chat_template;
  std::vector<TokenId> ends;
  AddedTokens raw_tokens, normalized_tokens, untouched_tokens;
  std::vector<TokenId> raw_user_defined;
  std::optional<BytePairEncoder> merges;
  std::optional<SentencePieceBpe> scores;
  std::optional<UnigramEncoder> unigram;
};

/// One call of encode.
class Tokenizer::Encoding {
 public:
  Encoding(const State& state, const EncodeOptions& options) : state_(state), options_(options) {}

  std::vector<TokenId> run(std::string_view text) {
    state_.raw_tokens.scan(
        text, options_.parse_special, options_.literal,
        [&](std::size_t begin, std::size_t end) {
          const bool literal =
              std::any_of(options_.literal.begin(), options_.literal.end(),
                          [&](const TextRange& range) { return range.begin < end && begin < range.end; });
          stretch(text.substr(begin, end - begin), begin == 0, options_.parse_special && !literal);
        },
        [&](TokenId id) { ids_.push_back(id); });
    if (options_.dropped_bytes) *options_.dropped_bytes = dropped_;
    return std::move(ids_);
  }

 private:
  /// Text between tokens that were found in it as it came.
  void stretch(std::string_view text, bool first, bool parse_special) {
    std::string changed;
    if (state_.normalizer.changes_text()) {
      changed = state_.normalizer.apply(text, first, state_.untouched_tokens);
      text = changed;
    }
    state_.normalized_tokens.scan(
        text, parse_special, {},
        [&](std::size_t begin, std::size_t end) {
          state_.pre.split(text.substr(begin, end - begin), first && begin == 0,
                           [&](std::string_view part) { piece(part); });
        },
        [&](TokenId id) { ids_.push_back(id); });
  }

  void piece(std::string_view text) {
    std::string spaced;
    if (state_.has_space_symbols && text.find(kSpaceSymbol) != std::string_view::npos) {
      append_spaces(text, spaced);
      text = spaced;
    }
    if (state_.takes_whole_tokens) {
      // User-defined tokens were looked for before, with their flags.
      const TokenId whole = state_.vocabulary.find_text(text);
      if (whole != kNoToken && state_.vocabulary.type(whole) != TokenType::user_defined) return ids_.push_back(whole);
    }
    dropped_ += state_.merges   ? state_.merges->encode(text, scratch_, ids_)
                : state_.scores ? state_.scores->encode(text, ids_)
                                : state_.unigram->encode(text, ids_);
  }

  const State& state_;
  const EncodeOptions& options_;
  std::vector<TokenId> ids_;
  std::size_t dropped_ = 0;
  BytePairEncoder::Scratch scratch_;
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

Tokenizer Tokenizer::load(const std::string& path) {
  if (!path.ends_with(".json")) return from_gguf(ModelFile::open(path));
  const auto text = [](const MappedFile& file) {
    constexpr std::size_t kMaxFileBytes = std::size_t{256} << 20;
    if (file.bytes().size() > kMaxFileBytes) {
      throw InvalidFile(
          fmt::format("{}: has {} bytes, the limit is {}", file.path(), file.bytes().size(), kMaxFileBytes));
    }
    return std::string_view(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  };
  const MappedFile file = MappedFile::open(path);
  const auto config_path = std::filesystem::path(path).replace_filename("tokenizer_config.json");
  if (!std::filesystem::exists(config_path)) return Tokenizer(read_tokenizer_json(text(file)));
  const MappedFile config = MappedFile::open(config_path);
  return Tokenizer(read_tokenizer_json(text(file), text(config)));
}

Tokenizer::Tokenizer(const TokenizerData& data) : state_(std::make_unique<State>(data)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

std::vector<TokenId> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  if (text.size() > kMaxTextBytes) {
    throw InvalidArgument(fmt::format("text: {} bytes, the limit is {}", text.size(), kMaxTextBytes));
  }
  std::size_t before = 0;
  for (const TextRange& literal : options.literal) {
    if (literal.begin < before || literal.end < literal.begin || literal.end > text.size()) {
      throw InvalidArgument(fmt::format("literal: bytes {} to {}, must be within {} and {}", literal.begin, literal.end,
                                        before, text.size()));
    }
    before = literal.end;
  }
  const State& state = *state_;
  std::vector<TokenId> ids = Encoding(state, options).run(text);
  if (options.add_special) {
    if (state.adds_bos && (ids.empty() || ids.front() != *state.bos)) ids.insert(ids.begin(), *state.bos);
    if (state.adds_eos && (ids.empty() || ids.back() != *state.eos)) ids.push_back(*state.eos);
  }
  return ids;
}

std::string Tokenizer::decode(std::span<const TokenId> ids, const DecodeOptions& options) const {
  const State& state = *state_;
  if (options.previous) state.check_id(*options.previous);
  bool begins = options.previous ? state.strips_each && state.ends_stretch(*options.previous) : state.strips_first;
  std::string text;
  for (const TokenId id : ids) {
    state.check_id(id);
    std::string_view bytes = state.vocabulary.bytes(id);
    if (state.vocabulary.type(id) == TokenType::control) {
      if (!options.skip_special) text += bytes;
      begins |= state.strips_each;
      continue;
    }
    if (begins && bytes.starts_with(' ')) bytes.remove_prefix(1);
    begins = state.strips_each && state.ends_stretch(id);
    text += bytes;
  }
  return text;
}

std::size_t Tokenizer::vocab_size() const noexcept { return state_->vocabulary.size(); }

std::string_view Tokenizer::token_bytes(TokenId id) const {
  state_->check_id(id);
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
