// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "llm/tokenizer/pre_tokenizer_rules.h"
#include "llm/tokenizer/tokenizer_data.h"
#include "llm/tokenizer/tokenizer_json.h"
#include "llm/tokenizer/utf8.h"
#include "ops_transformer/base/error.h"

namespace ops_transformer::llm {
namespace {

TokenizerModel read_model(const GgufMetadata& metadata) {
  const auto name = metadata.require<std::string_view>("tokenizer.ggml.model");
  if (name == "gpt2") return TokenizerModel::byte_level_bpe;
  if (name == "llama") return TokenizerModel::sentencepiece_bpe;
  if (name == "t5") return TokenizerModel::unigram;
  throw InvalidFile(fmt::format(
      "key 'tokenizer.ggml.model' names the unsupported tokenizer '{}'; known are gpt2, llama, t5", shown(name)));
}

StringList read_strings(const std::vector<std::string_view>& stored) {
  std::size_t bytes = 0;
  for (const std::string_view text : stored) bytes += text.size();
  StringList list;
  list.reserve(stored.size(), bytes);
  for (const std::string_view text : stored) list.push_back(text);
  return list;
}

template <class T>
void check_length(std::string_view key, const std::vector<T>& list, std::size_t num_tokens) {
  if (list.size() == num_tokens) return;
  throw InvalidFile(
      fmt::format("key '{}' has {} elements, tokenizer.ggml.tokens has {}", key, list.size(), num_tokens));
}

std::vector<TokenType> read_types(const GgufMetadata& metadata, std::size_t num_tokens,
                                  std::vector<std::string>& warnings) {
  constexpr std::string_view key = "tokenizer.ggml.token_type";
  const auto stored = metadata.get<std::vector<std::int32_t>>(key);
  if (!stored) {
    warnings.push_back(fmt::format("key '{}' is missing: every token is taken for plain text", key));
    return std::vector<TokenType>(num_tokens, TokenType::normal);
  }
  check_length(key, *stored, num_tokens);
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

std::string read_pre(const GgufMetadata& metadata, std::vector<std::string>& warnings) {
  const auto name = metadata.get<std::string>("tokenizer.ggml.pre");
  if (name) return *name;
  warnings.emplace_back(
      "key 'tokenizer.ggml.pre' is missing: text is cut by GPT-2's rule, which may not be this model's");
  return "default";
}

std::vector<double> read_scores(const GgufMetadata& metadata, std::size_t num_tokens) {
  constexpr std::string_view key = "tokenizer.ggml.scores";
  std::vector<float> scores = metadata.require<std::vector<float>>(key);
  check_length(key, scores, num_tokens);
  for (std::size_t i = 0; i < num_tokens; ++i) {
    if (!std::isfinite(scores[i]))
      throw InvalidFile(fmt::format("key '{}': token {} has the score {}", key, i, scores[i]));
  }
  return {scores.begin(), scores.end()};
}

std::string read_charsmap(const GgufMetadata& metadata) {
  const GgufEntry* entry = metadata.find("tokenizer.ggml.precompiled_charsmap");
  if (!entry) return {};
  if (entry->type != GgufType::array || (entry->element_type != GgufType::u8 && entry->element_type != GgufType::i8)) {
    throw InvalidFile("key 'tokenizer.ggml.precompiled_charsmap' must be an array of u8 or i8");
  }
  // Behind the element type and the number of elements.
  return {reinterpret_cast<const char*>(entry->bytes.data()) + (entry->bytes.size() - entry->length), entry->length};
}

std::optional<TokenId> read_id(const GgufMetadata& metadata, std::string_view name, std::size_t num_tokens) {
  const std::string key = fmt::format("tokenizer.ggml.{}_token_id", name);
  const auto id = metadata.get<std::uint32_t>(key);
  if (!id) return std::nullopt;
  if (*id >= num_tokens) {
    throw InvalidFile(fmt::format("key '{}' is {}, the vocabulary has {} tokens", key, *id, num_tokens));
  }
  return static_cast<TokenId>(*id);
}

void read_names(const GgufMetadata& metadata, TokenizerData& data) {
  for (const auto& [name, id] : {std::pair{"bos", &data.bos},
                                 {"eos", &data.eos},
                                 {"eot", &data.eot},
                                 {"eom", &data.eom},
                                 {"unknown", &data.unknown},
                                 {"padding", &data.padding}}) {
    if (const auto stored = read_id(metadata, name, data.tokens.size())) *id = stored;
  }
  data.chat_template = metadata.get<std::string>("tokenizer.chat_template");
}

void read_what_is_added(const GgufMetadata& metadata, bool add_bos, bool add_eos, TokenizerData& data) {
  data.add_bos = metadata.get_or("tokenizer.ggml.add_bos_token", add_bos);
  data.add_eos = metadata.get_or("tokenizer.ggml.add_eos_token", add_eos);
  if (data.add_bos && !data.bos) {
    throw InvalidFile("key 'tokenizer.ggml.bos_token_id' is missing, the model asks for BOS");
  }
  if (data.add_eos && !data.eos) {
    throw InvalidFile("key 'tokenizer.ggml.eos_token_id' is missing, the model asks for EOS");
  }
}

/// A file whose rules GGUF's own keys can't say.
TokenizerData read_huggingface(const GgufMetadata& metadata, std::size_t num_tokens) {
  TokenizerData data = read_tokenizer_json(metadata.require<std::string_view>("tokenizer.huggingface.json"));
  if (num_tokens < data.tokens.size()) {
    throw InvalidFile(fmt::format("key 'tokenizer.ggml.tokens' has {} tokens, tokenizer.huggingface.json has {}",
                                  num_tokens, data.tokens.size()));
  }
  data.pad_to(num_tokens);
  read_names(metadata, data);
  read_what_is_added(metadata, data.add_bos, data.add_eos, data);
  return data;
}

}  // namespace

TokenizerData read_tokenizer_gguf(const GgufMetadata& metadata) {
  TokenizerData data;
  data.model = read_model(metadata);
  data.tokens = read_strings(metadata.require<std::vector<std::string_view>>("tokenizer.ggml.tokens"));
  const std::size_t num_tokens = data.tokens.size();
  if (num_tokens == 0) throw InvalidFile("key 'tokenizer.ggml.tokens' is empty");
  if (metadata.get<std::string_view>("tokenizer.ggml.pre") == kHuggingFaceRules) {
    return read_huggingface(metadata, num_tokens);
  }
  data.types = read_types(metadata, num_tokens, data.warnings);
  read_names(metadata, data);
  bool add_bos = false, add_eos = false;
  if (data.model == TokenizerModel::byte_level_bpe) {
    data.pre = read_pre(metadata, data.warnings);
    const PreTokenizerRule& rule = find_pre_tokenizer_rule(data.pre);
    data.normalizers = rule.normalizers;
    data.splits = rule.splits;
    data.takes_whole_tokens = rule.takes_whole_tokens;
    add_bos = rule.adds_bos;
    data.merges = read_strings(metadata.require<std::vector<std::string_view>>("tokenizer.ggml.merges"));
  } else {
    data.pre = metadata.get_or("tokenizer.ggml.pre", std::string());
    data.scores = read_scores(metadata, num_tokens);
    // A list of merges, which other readers of such files pass over, says more than the scores.
    if (const auto merges = metadata.get<std::vector<std::string_view>>("tokenizer.ggml.merges")) {
      data.merges = read_strings(*merges);
    }
    data.add_space_prefix = metadata.get_or("tokenizer.ggml.add_space_prefix", true);
    data.remove_extra_whitespaces = metadata.get_or("tokenizer.ggml.remove_extra_whitespaces", false);
    data.charsmap = read_charsmap(metadata);
    const auto unknown = std::find(data.types.begin(), data.types.end(), TokenType::unknown);
    if (!data.unknown && unknown != data.types.end()) data.unknown = static_cast<TokenId>(unknown - data.types.begin());
    // SentencePiece's own habit, where the file has the token.
    add_bos = data.model == TokenizerModel::sentencepiece_bpe && data.bos;
    add_eos = data.model == TokenizerModel::unigram && data.eos;
  }
  for (std::size_t i = 0; i < num_tokens; ++i) {
    const bool user_defined = data.types[i] == TokenType::user_defined;
    if (!user_defined && data.types[i] != TokenType::control && data.types[i] != TokenType::unknown) continue;
    // SentencePiece's unigram model weighs user-defined tokens along with the others.
    if (user_defined && data.model == TokenizerModel::unigram) continue;
    data.added.push_back(
        {.id = static_cast<TokenId>(i), .normalized = user_defined && data.model == TokenizerModel::sentencepiece_bpe});
  }
  read_what_is_added(metadata, add_bos, add_eos, data);
  return data;
}

void write_tokenizer_gguf(const TokenizerData& data, GgufMetadataBuilder& metadata) {
  const auto strings = [](const StringList& list) {
    std::vector<std::string> texts;
    for (std::size_t i = 0; i < list.size(); ++i) texts.emplace_back(list[i]);
    return texts;
  };
  const bool byte_level = data.model == TokenizerModel::byte_level_bpe;
  metadata.add_string("tokenizer.ggml.model", byte_level                              ? "gpt2"
                                              : data.model == TokenizerModel::unigram ? "t5"
                                                                                      : "llama");
  metadata.add_string("tokenizer.ggml.pre", data.pre);
  if (!data.huggingface_json.empty()) metadata.add_string("tokenizer.huggingface.json", data.huggingface_json);
  metadata.add_strings("tokenizer.ggml.tokens", strings(data.tokens));
  std::vector<std::int32_t> types;
  for (const TokenType type : data.types) types.push_back(static_cast<std::int32_t>(type));
  metadata.add_i32s("tokenizer.ggml.token_type", types);
  if (byte_level || !data.merges.empty()) metadata.add_strings("tokenizer.ggml.merges", strings(data.merges));
  if (!byte_level) {
    metadata.add_f32s("tokenizer.ggml.scores", std::vector<float>(data.scores.begin(), data.scores.end()));
    metadata.add_bool("tokenizer.ggml.add_space_prefix", data.add_space_prefix);
    metadata.add_bool("tokenizer.ggml.remove_extra_whitespaces", data.remove_extra_whitespaces);
  }
  const auto add_id = [&](const char* name, std::optional<TokenId> id) {
    if (id) metadata.add_u32(fmt::format("tokenizer.ggml.{}_token_id", name), static_cast<std::uint32_t>(*id));
  };
  add_id("bos", data.bos);
  add_id("eos", data.eos);
  add_id("eot", data.eot);
  add_id("eom", data.eom);
  add_id("unknown", data.unknown);
  add_id("padding", data.padding);
  metadata.add_bool("tokenizer.ggml.add_bos_token", data.add_bos);
  metadata.add_bool("tokenizer.ggml.add_eos_token", data.add_eos);
  if (data.chat_template) metadata.add_string("tokenizer.chat_template", *data.chat_template);
}

void TokenizerData::pad_to(std::size_t size) {
  for (std::size_t i = 0; tokens.size() < size; ++i) {
    tokens.push_back(fmt::format("[PAD{}]", i));
    types.push_back(TokenType::unused);
    if (!scores.empty()) scores.push_back(0);
  }
}

}  // namespace ops_transformer::llm
