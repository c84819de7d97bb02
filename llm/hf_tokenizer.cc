// SPDX-License-Identifier: Apache-2.0
#include "llm/hf_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "llm/mapped_file.h"
#include "llm/utf8.h"
#include "ops_transformer/base/error.h"

namespace ops_transformer::llm {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr std::size_t kMaxTokenizerBytes = std::size_t{256} << 20, kMaxConfigBytes = std::size_t{16} << 20;
enum TokenKind : std::int32_t { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

struct Vocabulary {
  std::vector<std::string> tokens;
  std::vector<std::int32_t> types;
  std::map<std::string, std::uint32_t, std::less<>> ids;
};

/// The text of a special token, which is written as a text or as an object with a "content".
std::optional<std::string> special_text(const JsonObject& config, const std::string& key) {
  const Json* value = config.find(key);
  if (value && value->is_object()) return config.object(key)->text("content");
  return config.text(key);
}

std::optional<std::string> read_chat_template(const fs::path& folder, const JsonObject& config) {
  if (const fs::path path = folder / "chat_template.jinja"; fs::exists(path)) {
    const MappedFile file = MappedFile::open(path);
    if (file.bytes().size() > kMaxConfigBytes) {
      throw InvalidFile(
          fmt::format("{}: has {} bytes, the limit is {}", path.string(), file.bytes().size(), kMaxConfigBytes));
    }
    return std::string(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  }
  const Json* value = config.find("chat_template");
  if (!value || !value->is_array()) return config.text("chat_template");
  for (const Json& named : *value) {
    if (named.is_object() && named.value("name", Json()) == "default" && named.value("template", Json()).is_string()) {
      return named["template"].get<std::string>();
    }
  }
  return std::nullopt;
}

/// The pre-tokenizers that GGUF has a name for, by the expression in tokenizer.json.
constexpr std::pair<std::string_view, std::string_view> kSplits[] = {
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     "llama-bpe"},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     "qwen2"},
};

std::string pre_name(const JsonObject& tokenizer) {
  const auto pre = tokenizer.object("pre_tokenizer");
  if (!pre) tokenizer.refuse("pre_tokenizer", "is missing");
  std::vector<Json> steps = {pre->json()};
  if (pre->text("type") == "Sequence") {
    const Json* list = pre->find("pretokenizers");
    if (!list || !list->is_array()) pre->refuse("pretokenizers", "must be a list");
    steps = std::vector<Json>(list->begin(), list->end());
  }
  std::string split;
  bool digits = false, byte_level = false, gpt2 = false;
  for (const Json& step : steps) {
    const std::string type =
        step.is_object() && step.contains("type") && step["type"].is_string() ? step["type"] : Json("");
    if (type == "ByteLevel") {
      byte_level = true;
      gpt2 = step.value("use_regex", Json(true)) == Json(true);
    } else if (type == "Digits" && step.value("individual_digits", Json(false)) == Json(true)) {
      digits = true;
    } else if (type == "Split" && split.empty() && step.value("pattern", Json()).is_object() &&
               step["pattern"].value("Regex", Json()).is_string()) {
      split = step["pattern"]["Regex"].get<std::string>();
    } else {
      tokenizer.refuse("pre_tokenizer", fmt::format("has the step '{}', which is not supported", shown(type)));
    }
  }
  if (!byte_level) tokenizer.refuse("pre_tokenizer", "is not byte-level, which is not supported");
  if (split.empty() && gpt2) return digits ? "smollm" : "gpt-2";
  for (const auto& [expression, name] : kSplits) {
    if (split == expression && !gpt2 && !digits) return std::string(name);
  }
  tokenizer.refuse("pre_tokenizer", fmt::format("cuts text by '{}', which is not supported", shown(split)));
}

/// The token that a template puts before every text, if any.
std::optional<std::string> first_token(const JsonObject& tokenizer) {
  const auto post = tokenizer.object("post_processor");
  if (!post) return std::nullopt;
  std::vector<Json> steps = {post->json()};
  if (const Json* list = post->find("processors"); list && list->is_array()) {
    steps = std::vector<Json>(list->begin(), list->end());
  }
  for (const Json& step : steps) {
    if (!step.is_object() || step.value("type", Json()) != "TemplateProcessing") continue;
    const Json single = step.value("single", Json());
    if (single.is_array() && !single.empty() && single[0].is_object() && single[0].contains("SpecialToken")) {
      const Json id = single[0]["SpecialToken"].is_object() ? single[0]["SpecialToken"].value("id", Json()) : Json();
      if (id.is_string()) return id.get<std::string>();
    }
  }
  return std::nullopt;
}

void place(Vocabulary& vocabulary, const std::string& token, std::int64_t id, std::int32_t type) {
  const auto index = std::size_t(id);
  if (vocabulary.types[index] != kUnused && vocabulary.tokens[index] != token) {
    throw InvalidFile(fmt::format("tokenizer.json: '{}' and '{}' both have the id {}", shown(vocabulary.tokens[index]),
                                  shown(token), id));
  }
  vocabulary.tokens[index] = token;
  vocabulary.types[index] = type;
  vocabulary.ids[token] = std::uint32_t(id);
}

Vocabulary read_vocabulary(const JsonObject& tokenizer, const JsonObject& model, std::int64_t vocab_size) {
  Vocabulary vocabulary;
  vocabulary.tokens.resize(std::size_t(vocab_size));
  vocabulary.types.assign(std::size_t(vocab_size), kUnused);
  const auto vocab = model.object("vocab");
  if (!vocab) model.refuse("vocab", "is missing");
  for (const auto& [token, id] : vocab->json().items()) {
    place(vocabulary, token, vocab->require_integer(token, 0, vocab_size - 1), kNormal);
  }
  if (const Json* added = tokenizer.find("added_tokens")) {
    for (const Json& entry : *added) {
      if (!entry.is_object() || !entry.value("content", Json()).is_string() ||
          !entry.value("id", Json()).is_number_unsigned() ||
          entry["id"].get<std::uint64_t>() >= std::uint64_t(vocab_size)) {
        tokenizer.refuse("added_tokens",
                         fmt::format("must have contents and ids below the vocabulary's {}", vocab_size));
      }
      place(vocabulary, entry["content"], entry["id"],
            entry.value("special", Json(false)) == Json(true) ? kControl : kUserDefined);
    }
  }
  for (std::size_t i = 0; i < vocabulary.tokens.size(); ++i) {
    if (vocabulary.types[i] == kUnused) vocabulary.tokens[i] = fmt::format("[PAD{}]", i);
  }
  return vocabulary;
}

std::vector<std::string> read_merges(const JsonObject& model) {
  const Json* list = model.find("merges");
  if (!list || !list->is_array()) model.refuse("merges", "must be a list");
  std::vector<std::string> merges;
  for (const Json& merge : *list) {
    if (merge.is_string()) {
      merges.push_back(merge);
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      merges.push_back(
          fmt::format("{} {}", merge[0].get_ref<const std::string&>(), merge[1].get_ref<const std::string&>()));
    } else {
      model.refuse("merges", "must hold pairs of texts");
    }
  }
  return merges;
}

/// True where a space is put before a text. Throws where text is changed or cut in another way than SentencePiece does,
/// which makes spaces U+2581 and cuts nowhere.
bool sentencepiece_prefix(const JsonObject& tokenizer) {
  const auto steps_of = [&](const char* key, const char* list) {
    const auto object = tokenizer.object(key);
    std::vector<Json> steps;
    if (!object) return steps;
    const Json* inner = object->text("type") == "Sequence" ? object->find(list) : nullptr;
    if (inner && inner->is_array()) return std::vector<Json>(inner->begin(), inner->end());
    steps.push_back(object->json());
    return steps;
  };
  const Json space = Json{{"String", " "}}, symbol = "\xe2\x96\x81";
  bool prefix = false, replaced = false;
  for (const Json& step : steps_of("normalizer", "normalizers")) {
    const Json type = step.is_object() ? step.value("type", Json()) : Json();
    if (type == "Prepend" && step.value("prepend", Json()) == symbol) {
      prefix = true;
    } else if (type == "Replace" && step.value("pattern", Json()) == space && step.value("content", Json()) == symbol) {
      replaced = true;
    } else {
      tokenizer.refuse("normalizer", fmt::format("has the step {}, which is not supported", shown_json(type)));
    }
  }
  for (const Json& step : steps_of("pre_tokenizer", "pretokenizers")) {
    const Json type = step.is_object() ? step.value("type", Json()) : Json();
    // With a prefix, Metaspace leaves texts alone that begin with a space, which GGUF can't say.
    if (type == "Metaspace" && step.value("replacement", Json()) == symbol &&
        step.value("split", Json(true)) == Json(false) && step.value("prepend_scheme", Json("always")) == "never") {
      replaced = true;
    } else if (!(type == "Split" && step.value("pattern", Json()) == space && replaced)) {  // no spaces are left for it
      tokenizer.refuse("pre_tokenizer", fmt::format("has the step {}, which is not supported", shown_json(type)));
    }
  }
  if (!replaced) tokenizer.refuse("normalizer", "does not make spaces U+2581, which is not supported");
  return prefix;
}

/// BPE over characters that falls back to bytes. GGUF's form of it has no merges: a token's score says when it is made.
void add_sentencepiece(const JsonObject& tokenizer, const JsonObject& bpe, Vocabulary& vocabulary,
                       GgufMetadataBuilder& metadata) {
  const std::vector<std::string> merges = read_merges(bpe);
  std::vector<float> scores(vocabulary.tokens.size(), -float(merges.size()) - 1);
  for (std::size_t i = merges.size(); i-- > 0;) {  // the first of a token's merges counts
    std::string made = merges[i];
    if (const std::size_t space = made.find(' '); space != made.npos) made.erase(space, 1);
    const auto token = vocabulary.ids.find(made);
    if (token == vocabulary.ids.end())
      bpe.refuse("merges", fmt::format("make '{}', which is not a token", shown(made)));
    scores[token->second] = -float(i);
  }
  for (int byte = 0; byte < 256; ++byte) {
    const auto token = vocabulary.ids.find(fmt::format("<0x{:02X}>", byte));
    if (token != vocabulary.ids.end()) vocabulary.types[token->second] = kByte;
  }
  if (const auto unknown = bpe.text("unk_token")) {
    const auto token = vocabulary.ids.find(*unknown);
    if (token != vocabulary.ids.end()) vocabulary.types[token->second] = kUnknown;
  }
  metadata.add_string("tokenizer.ggml.model", "llama");
  metadata.add_string("tokenizer.ggml.pre", "default");
  metadata.add_f32s("tokenizer.ggml.scores", scores);
  metadata.add_bool("tokenizer.ggml.add_space_prefix", sentencepiece_prefix(tokenizer));
}

/// Ids that config.json (or generation_config.json) names as ends: one or a list.
std::vector<std::uint32_t> end_ids(const JsonObject& config, std::int64_t vocab_size) {
  std::vector<std::uint32_t> ids;
  const Json* value = config.find("eos_token_id");
  for (const Json& id : !value ? Json::array() : value->is_array() ? *value : Json::array({*value})) {
    if (!id.is_number_unsigned() || id.get<std::uint64_t>() >= std::uint64_t(vocab_size)) {
      config.refuse("eos_token_id", fmt::format("must be below the vocabulary's {}", vocab_size));
    }
    ids.push_back(id);
  }
  return ids;
}

}  // namespace

void add_hf_tokenizer(const fs::path& folder, const JsonObject& config, const HfModel& model,
                      GgufMetadataBuilder& metadata) {
  if (!fs::exists(folder / "tokenizer.json")) {
    throw InvalidFile(fmt::format("{}: has no tokenizer.json", folder.string()));
  }
  const JsonObject tokenizer = JsonObject::read(folder / "tokenizer.json", kMaxTokenizerBytes);
  const bool has_options = fs::exists(folder / "tokenizer_config.json");
  const JsonObject options = has_options ? JsonObject::read(folder / "tokenizer_config.json", kMaxConfigBytes)
                                         : JsonObject::parse("{}", "tokenizer_config.json");
  const auto bpe = tokenizer.object("model");
  if (!bpe || bpe->text("type").value_or("BPE") != "BPE")
    tokenizer.refuse("model", "is not BPE, which is not supported");
  Vocabulary vocabulary = read_vocabulary(tokenizer, *bpe, model.vocab_size);
  if (bpe->truth("byte_fallback").value_or(false)) {
    add_sentencepiece(tokenizer, *bpe, vocabulary, metadata);
  } else {
    metadata.add_string("tokenizer.ggml.model", "gpt2");
    metadata.add_string("tokenizer.ggml.pre", pre_name(tokenizer));
    metadata.add_strings("tokenizer.ggml.merges", read_merges(*bpe));
  }
  metadata.add_strings("tokenizer.ggml.tokens", vocabulary.tokens);
  metadata.add_i32s("tokenizer.ggml.token_type", vocabulary.types);

  const auto id_of = [&](const std::string& key, const char* config_key) -> std::optional<std::uint32_t> {
    if (const auto text = special_text(options, key)) {
      const auto found = vocabulary.ids.find(*text);
      if (found == vocabulary.ids.end())
        options.refuse(key, fmt::format("is '{}', which is not a token", shown(*text)));
      return found->second;
    }
    if (!config_key) return std::nullopt;
    const auto id = config.integer(config_key, 0, model.vocab_size - 1);
    return id ? std::optional(std::uint32_t(*id)) : std::nullopt;
  };
  const auto bos = id_of("bos_token", "bos_token_id");
  if (bos) metadata.add_u32("tokenizer.ggml.bos_token_id", *bos);
  std::vector<std::uint32_t> ends = end_ids(config, model.vocab_size);
  if (const fs::path path = folder / "generation_config.json"; fs::exists(path)) {
    std::ranges::copy(end_ids(JsonObject::read(path, kMaxConfigBytes), model.vocab_size), std::back_inserter(ends));
  }
  if (const auto eos = id_of("eos_token", nullptr)) ends.insert(ends.begin(), *eos);
  const char* end_keys[] = {"eos", "eot", "eom"};
  for (std::size_t i = 0, keys = 0; i < ends.size() && keys < std::size(end_keys); ++i) {
    if (std::find(ends.begin(), ends.begin() + std::ptrdiff_t(i), ends[i]) != ends.begin() + std::ptrdiff_t(i))
      continue;
    metadata.add_u32(fmt::format("tokenizer.ggml.{}_token_id", end_keys[keys++]), ends[i]);
  }
  if (const auto id = id_of("unk_token", nullptr)) metadata.add_u32("tokenizer.ggml.unknown_token_id", *id);
  if (const auto id = id_of("pad_token", nullptr)) metadata.add_u32("tokenizer.ggml.padding_token_id", *id);
  const auto first = first_token(tokenizer);
  const bool adds_bos =
      first ? bos && vocabulary.tokens[*bos] == *first : options.truth("add_bos_token").value_or(false);
  metadata.add_bool("tokenizer.ggml.add_bos_token", adds_bos);
  metadata.add_bool("tokenizer.ggml.add_eos_token", options.truth("add_eos_token").value_or(false));
  if (const auto text = read_chat_template(folder, options)) metadata.add_string("tokenizer.chat_template", *text);
}

}  // namespace ops_transformer::llm
