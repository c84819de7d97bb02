// SPDX-License-Identifier: Apache-2.0
#include "llm/tokenizer/tokenizer_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <unordered_map>

#include "llm/formats/json_file.h"
#include "llm/tokenizer/tokenizer_json_rules.h"
#include "llm/tokenizer/utf8.h"
#include "ops_transformer/base/error.h"

namespace ops_transformer::llm {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kFile = "tokenizer.json", kConfig = "tokenizer_config.json";
constexpr std::size_t kMaxHoles = 65536;

class Reader {
 public:
  Reader(const JsonObject& file, const JsonObject& config) : file_(file), config_(config) {}

  TokenizerData run() {
    rules_ = read_tokenizer_rules(file_);
    read_model();
    read_added_tokens();
    fill_tokens();
    if (!unknown_.empty()) data_.unknown = find(unknown_, "model.unk_token", file_);
    read_post_processor();
    read_config();
    if (data_.add_bos && !data_.bos) file_.refuse("post_processor", "puts a token in front that is not known as BOS");
    data_.normalizers = std::move(rules_.normalizers);
    data_.splits = std::move(rules_.splits);
    return std::move(data_);
  }

 private:
  struct Token {
    TokenId id;
    TokenType type;
    double score;
  };

  void place(const std::string& text, std::int64_t id, TokenType type, double score, const std::string& where) {
    if (id < 0 || id >= std::int64_t{1} << 30) file_.refuse(where, fmt::format("has the id {}, the limit is 2^30", id));
    const auto [at, is_new] = tokens_.try_emplace(text, Token{static_cast<TokenId>(id), type, score});
    if (!is_new) {
      if (at->second.id != id) {
        file_.refuse(where, fmt::format("has '{}' with the ids {} and {}", shown(text), at->second.id, id));
      }
      at->second.type = type;
    }
  }

  TokenId find(const std::string& text, std::string_view what, const JsonObject& where) const {
    const auto found = tokens_.find(text);
    if (found == tokens_.end())
      where.refuse(std::string(what), fmt::format("is '{}', which is not a token", shown(text)));
    return found->second.id;
  }

  void read_model() {
    const auto model = file_.object("model");
    if (!model) file_.refuse("model", "is missing");
    const std::string type = model->text("type").value_or(model->has("merges") ? "BPE" : "");
    byte_fallback_ = model->truth("byte_fallback").value_or(false);
    if (type == "BPE") {
      read_bpe(*model);
    } else if (type == "Unigram") {
      read_unigram(*model);
    } else {
      model->refuse("type", fmt::format("is '{}', known are BPE and Unigram", shown(type)));
    }
  }

  TokenType type_of(std::string_view text) const {
    const bool byte = byte_fallback_ && text.size() == 6 && text.starts_with("<0x") && text[5] == '>' &&
                      text.find_first_not_of("0123456789ABCDEF", 3) == 5;
    return byte ? TokenType::byte : TokenType::normal;
  }

  void read_bpe(const JsonObject& model) {
    data_.model = rules_.byte_level ? TokenizerModel::byte_level_bpe : TokenizerModel::sentencepiece_bpe;
    if (model.number("dropout").value_or(0) != 0) model.refuse("dropout", "is not 0, which is not supported");
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      if (!model.text(key).value_or("").empty()) model.refuse(key, "is not empty, which is not supported");
    }
    unknown_ = model.text("unk_token").value_or("");
    data_.fuse_unknown = model.truth("fuse_unk").value_or(false);
    data_.takes_whole_tokens = model.truth("ignore_merges").value_or(false);
    const auto vocab = model.object("vocab");
    if (!vocab) model.refuse("vocab", "is missing");
    for (const auto& [text, id] : vocab->json().items()) {
      if (!id.is_number_integer()) vocab->refuse(text, fmt::format("is {}, needed a whole number", shown_json(id)));
      place(text, id.get<std::int64_t>(), type_of(text), 0, "model.vocab");
    }
    const Json* merges = model.find("merges");
    if (!merges || !merges->is_array()) model.refuse("merges", "must be a list");
    std::size_t rank = 0;
    for (const Json& merge : *merges) {
      const auto bad = [&](std::string_view why) {
        model.refuse("merges", fmt::format("has number {}, {}, which {}", rank, shown_json(merge), why));
      };
      std::string left, right;
      if (merge.is_string()) {
        const auto& text = merge.get_ref<const std::string&>();
        const std::size_t space = text.find(' ');
        if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) bad("is not two tokens");
        left = text.substr(0, space);
        right = text.substr(space + 1);
      } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
        left = merge[0].get<std::string>();
        right = merge[1].get<std::string>();
        if (left.find(' ') != std::string::npos || right.find(' ') != std::string::npos) bad("has a space in a token");
      } else {
        bad("is not two tokens");
      }
      const auto result = tokens_.find(left + right);
      if (left.empty() || right.empty() || !tokens_.contains(left) || !tokens_.contains(right) ||
          result == tokens_.end()) {
        bad("needs a token that the vocabulary lacks");
      }
      if (result->second.score == 0) result->second.score = -static_cast<double>(rank + 1);
      data_.merges.push_back(fmt::format("{} {}", left, right));
      ++rank;
    }
  }

  void read_unigram(const JsonObject& model) {
    data_.model = TokenizerModel::unigram;
    data_.sums_in_double = true;
    if (rules_.byte_level) model.refuse("type", "is Unigram over bytes, which is not supported");
    const Json* vocab = model.find("vocab");
    if (!vocab || !vocab->is_array()) model.refuse("vocab", "must be a list");
    const auto unknown = model.integer("unk_id", 0, std::int64_t(vocab->size()) - 1);
    std::int64_t id = 0;
    for (const Json& entry : *vocab) {
      if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() || !entry[1].is_number()) {
        model.refuse("vocab", fmt::format("has number {}, {}, which is not a text and a score", id, shown_json(entry)));
      }
      const auto& text = entry[0].get_ref<const std::string&>();
      const bool is_unknown = unknown && id == *unknown;
      place(text, id, is_unknown ? TokenType::unknown : type_of(text), entry[1].get<double>(), "model.vocab");
      if (is_unknown) unknown_ = text;
      ++id;
    }
  }

  void read_added_tokens() {
    for (const JsonObject& token : file_.elements("added_tokens")) {
      const auto content = token.text("content");
      if (!content || content->empty()) token.refuse("content", "must be a text that is not empty");
      const std::int64_t id = token.require_integer("id", 0, std::int64_t{1} << 30);
      const bool special = token.truth("special").value_or(false);
      place(*content, id, special ? TokenType::control : TokenType::user_defined, 0, "added_tokens");
      AddedToken flags{.id = static_cast<TokenId>(id)};
      flags.strip_left = token.truth("lstrip").value_or(false);
      flags.strip_right = token.truth("rstrip").value_or(false);
      flags.single_word = token.truth("single_word").value_or(false);
      flags.normalized = token.truth("normalized").value_or(!special) && !rules_.normalizers.empty();
      data_.added.push_back(flags);
    }
  }

  void fill_tokens() {
    if (tokens_.empty()) file_.refuse("model", "has no tokens");
    std::size_t size = 0;
    for (const auto& [text, token] : tokens_) size = std::max(size, static_cast<std::size_t>(token.id) + 1);
    if (size > tokens_.size() + kMaxHoles) {
      file_.refuse("model", fmt::format("has {} tokens with ids up to {}: more than {} holes", tokens_.size(), size - 1,
                                        kMaxHoles));
    }
    std::vector<const std::pair<const std::string, Token>*> by_id(size);
    for (const auto& entry : tokens_) {
      auto& slot = by_id[static_cast<std::size_t>(entry.second.id)];
      if (slot) {
        file_.refuse("model", fmt::format("has '{}' and '{}' with the id {}", shown(slot->first), shown(entry.first),
                                          entry.second.id));
      }
      slot = &entry;
    }
    for (std::size_t i = 0; i < size; ++i) {
      data_.tokens.push_back(by_id[i] ? by_id[i]->first : fmt::format("[PAD{}]", i));
      data_.types.push_back(by_id[i] ? by_id[i]->second.type : TokenType::unused);
      if (!rules_.byte_level) data_.scores.push_back(by_id[i] ? by_id[i]->second.score : 0);
    }
  }

  /// The tokens that a template puts before and after a text.
  void read_post_processor() {
    const auto post = file_.object("post_processor");
    if (!post) return;
    std::vector<JsonObject> steps = {*post};
    if (post->text("type") == "Sequence") steps = post->elements("processors");
    for (const JsonObject& step : steps) {
      const std::string type = step.text("type").value_or("");
      if (type == "ByteLevel") continue;  // changes offsets alone
      if (type != "TemplateProcessing") {
        step.refuse("type", fmt::format("is '{}', known are TemplateProcessing, ByteLevel, Sequence", shown(type)));
      }
      bool before = true;
      for (const JsonObject& part : step.elements("single")) {
        if (part.has("Sequence")) {
          if (!before) step.refuse("single", "has the text twice");
          before = false;
          continue;
        }
        const auto special = part.object("SpecialToken");
        const auto text = special ? special->text("id") : std::nullopt;
        if (!text) step.refuse("single", "has a part that is neither Sequence nor SpecialToken");
        std::optional<TokenId>& token = before ? data_.bos : data_.eos;
        if (token) step.refuse("single", fmt::format("has two tokens {} the text", before ? "before" : "behind"));
        token = find(*text, "post_processor.single", file_);
        (before ? data_.add_bos : data_.add_eos) = true;
      }
      if (before) step.refuse("single", "lacks the text");
    }
  }

  /// A special token, which is written as a text or as an object with a "content".
  std::optional<std::string> special_text(const std::string& key) const {
    const Json* value = config_.find(key);
    return value && value->is_object() ? config_.object(key)->text("content") : config_.text(key);
  }

  void read_config() {
    const auto name = [&](const char* key, std::optional<TokenId>& id) {
      const auto text = special_text(key);
      if (text && tokens_.contains(*text)) id = tokens_.find(*text)->second.id;
    };
    const std::optional<TokenId> template_bos = data_.bos, template_eos = data_.eos;
    name("bos_token", data_.bos);
    name("eos_token", data_.eos);
    name("pad_token", data_.padding);
    if (!data_.unknown) name("unk_token", data_.unknown);
    // What a template adds is what is added, whatever the configuration calls BOS and EOS.
    if (template_bos) data_.bos = template_bos;
    if (template_eos) data_.eos = template_eos;
    data_.add_bos = config_.truth("add_bos_token").value_or(data_.add_bos) && data_.bos;
    data_.add_eos = config_.truth("add_eos_token").value_or(data_.add_eos) && data_.eos;
    const Json* chat = config_.find("chat_template");
    if (!chat || !chat->is_array()) {
      data_.chat_template = config_.text("chat_template");
      return;
    }
    for (const JsonObject& named : config_.elements("chat_template")) {
      if (named.text("name") == "default") data_.chat_template = named.text("template");
    }
  }

  const JsonObject& file_;
  const JsonObject& config_;
  TokenizerRules rules_;
  TokenizerData data_;
  std::unordered_map<std::string, Token> tokens_;
  std::string unknown_;
  bool byte_fallback_ = false;
};

}  // namespace

TokenizerData read_tokenizer_json(std::string_view tokenizer, std::string_view config) {
  const JsonObject file = JsonObject::parse(tokenizer, std::string(kFile));
  const JsonObject options = JsonObject::parse(config.empty() ? "{}" : config, std::string(kConfig));
  TokenizerData data = Reader(file, options).run();
  if (!name_tokenizer_rules(data)) {
    data.pre = kHuggingFaceRules;
    data.huggingface_json = tokenizer;
  }
  return data;
}

}  // namespace ops_transformer::llm
