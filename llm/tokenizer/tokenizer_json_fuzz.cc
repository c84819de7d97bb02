// SPDX-License-Identifier: Apache-2.0
// feeds: llm/tokenizer/tokenizer_json.cc llm/tokenizer/tokenizer_json_rules.cc llm/tokenizer/regex_translation.cc
// feeds: llm/tokenizer/regex.cc llm/tokenizer/pre_tokenizer.cc llm/tokenizer/pre_tokenizer_rules.cc
// feeds: llm/tokenizer/text_normalizer.cc llm/tokenizer/unicode.cc
#include "llm/tokenizer/tokenizer_json.h"

#include <fuzzer/FuzzedDataProvider.h>

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "llm/formats/gguf_metadata.h"
#include "llm/tokenizer/pre_tokenizer.h"
#include "llm/tokenizer/pre_tokenizer_rules.h"
#include "llm/tokenizer/regex.h"
#include "llm/tokenizer/text_normalizer.h"
#include "llm/tokenizer/tokenizer.h"
#include "llm/tokenizer/tokenizer_json_rules.h"
#include "llm/tokenizer/unicode.h"
#include "llm/tokenizer/utf8.h"
#include "tests/support/fuzz.h"
#include "tests/support/small_tokenizer.h"

namespace ops_transformer::llm {
namespace {

using Json = nlohmann::json;

std::string short_text(FuzzedDataProvider& input) {
  return input.PickValueInArray(
      {"", " ", "a", "ab", "b", "▁", "é", "<s>", "</s>", "<unk>", "\n", "<0x0A>", "Word", "zzz"});
}

Json pattern(FuzzedDataProvider& input) {
  if (input.ConsumeBool()) return {{"String", short_text(input)}};
  if (input.ConsumeBool()) {
    // Pieces of patterns, put together by chance.
    std::string text;
    for (int i = input.ConsumeIntegralInRange(0, 4); i > 0; --i) {
      text += input.PickValueInArray({"\\s",    "\\S+", "\\d",    "\\D",   "\\w", "\\W", "\\p{L}",  "\\p{^Lu}",
                                      "\\P{N}", "[^a",  "\\s]",   "[",     "]",   "(?:", "(?=",     "(?!a",
                                      ")",      "(",    "|",      "*+",    "++",  "?",   "{1,3}",   "{,2}",
                                      "{2}+",   "{",    "\\x41",  "\\x{e", "}",   ".",   "\\u00e9", "\\s*[\\r\\n]+",
                                      "\\s+$",  "\\R",  "(?<=a)", "\\p{",  "a-z", "&&",  "^",       "$",
                                      "\\A",    "\\z",  "\\-",    "é",     "\\"});
    }
    return {{"Regex", text}};
  }
  const auto rules = pre_tokenizer_rules();
  const auto& splits = rules[input.ConsumeIntegralInRange<std::size_t>(0, rules.size() - 1)].splits;
  return {{"Regex", splits[input.ConsumeIntegralInRange<std::size_t>(0, splits.size() - 1)].pattern}};
}

Json normalizer(FuzzedDataProvider& input, int depth) {
  const std::string type = input.PickValueInArray(
      {"NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Strip", "Prepend", "Replace", "Sequence", "BertNormalizer"});
  Json step = {{"type", type}};
  if (type == "Strip") step["strip_left"] = input.ConsumeBool();
  if (type == "Prepend") step["prepend"] = short_text(input);
  if (type == "Replace") {
    step["pattern"] = input.ConsumeBool() ? Json{{"String", " "}} : pattern(input);
    step["content"] = input.ConsumeBool() ? "▁" : short_text(input);
  }
  if (type == "Sequence") {
    step["normalizers"] = Json::array();
    for (int i = depth > 2 ? 0 : input.ConsumeIntegralInRange(0, 3); i > 0; --i) {
      step["normalizers"].push_back(normalizer(input, depth + 1));
    }
  }
  return step;
}

Json pre_tokenizer(FuzzedDataProvider& input, int depth) {
  const std::string type =
      input.PickValueInArray({"ByteLevel", "Split", "Digits", "Punctuation", "Whitespace", "WhitespaceSplit",
                              "CharDelimiterSplit", "Metaspace", "Sequence", "UnicodeScripts"});
  Json step = {{"type", type}};
  if (type == "ByteLevel") {
    step["add_prefix_space"] = input.ConsumeBool();
    step["use_regex"] = input.ConsumeBool();
  }
  if (type == "Split") step["pattern"] = pattern(input);
  if (type == "Split" || type == "Punctuation") {
    step["behavior"] = input.PickValueInArray(
        {"Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous", "isolated", "x"});
    step["invert"] = input.ConsumeBool();
  }
  if (type == "Digits") step["individual_digits"] = input.ConsumeBool();
  if (type == "CharDelimiterSplit") step["delimiter"] = short_text(input);
  if (type == "Metaspace") {
    step["prepend_scheme"] = input.PickValueInArray({"always", "first", "never", "x"});
    step["split"] = input.ConsumeBool();
    if (input.ConsumeBool()) step["replacement"] = short_text(input);
  }
  if (type == "Sequence") {
    step["pretokenizers"] = Json::array();
    for (int i = depth > 2 ? 0 : input.ConsumeIntegralInRange(0, 4); i > 0; --i) {
      step["pretokenizers"].push_back(pre_tokenizer(input, depth + 1));
    }
  }
  return step;
}

Json small_file(FuzzedDataProvider& input) {
  Json file = {{"added_tokens", Json::array()}};
  const bool unigram = input.ConsumeIntegralInRange(0, 3) == 0;
  Json& model = file["model"];
  std::vector<std::string> texts = {"<unk>", "<s>", "</s>", "a", "b", "ab", "▁", "▁a", "▁▁", "é", "\n"};
  for (int byte = 0; byte < 256; ++byte) texts.push_back(test::byte_level(std::string(1, static_cast<char>(byte))));
  if (input.ConsumeBool()) {
    for (int byte = 0; byte < 256; ++byte) texts.push_back(fmt::format("<0x{:02X}>", byte));
  }
  std::sort(texts.begin() + 3, texts.end());
  texts.erase(std::unique(texts.begin() + 3, texts.end()), texts.end());
  if (unigram) {
    model = {{"type", "Unigram"}, {"unk_id", 0}, {"vocab", Json::array()}};
    for (std::size_t i = 0; i < texts.size(); ++i) model["vocab"].push_back({texts[i], -0.1 * double(i % 50)});
  } else {
    model = {{"type", "BPE"}, {"vocab", Json::object()}, {"merges", Json::array({"a b", Json{"▁", "a"}, "▁ ▁"})}};
    for (std::size_t i = 0; i < texts.size(); ++i) model["vocab"][texts[i]] = i;
    if (input.ConsumeBool()) model["unk_token"] = "<unk>";
    model["fuse_unk"] = input.ConsumeBool();
    model["ignore_merges"] = input.ConsumeBool();
  }
  model["byte_fallback"] = input.ConsumeBool();
  for (int i = input.ConsumeIntegralInRange(0, 4); i > 0; --i) {
    const std::string content = short_text(input);
    const auto at = std::find(texts.begin(), texts.end(), content) - texts.begin();
    file["added_tokens"].push_back({{"content", content},
                                    {"id", at + (at == std::ptrdiff_t(texts.size()) ? i : 0)},
                                    {"special", input.ConsumeBool()},
                                    {"lstrip", input.ConsumeBool()},
                                    {"rstrip", input.ConsumeBool()},
                                    {"single_word", input.ConsumeBool()},
                                    {"normalized", input.ConsumeBool()}});
  }
  if (input.ConsumeBool()) file["normalizer"] = normalizer(input, 0);
  if (input.ConsumeBool()) {
    file["pre_tokenizer"] = pre_tokenizer(input, 0);
    if (input.ConsumeBool()) {
      file["pre_tokenizer"] = {
          {"type", "Sequence"},
          {"pretokenizers",
           {file["pre_tokenizer"],
            {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", input.ConsumeBool()}}}}};
    }
  }
  if (input.ConsumeBool()) {
    Json single = Json::array();
    for (int i = input.ConsumeIntegralInRange(0, 4); i > 0; --i) {
      single.push_back(input.ConsumeBool()
                           ? Json{{"SpecialToken", {{"id", input.ConsumeBool() ? "<s>" : short_text(input)}}}}
                           : Json{{"Sequence", {{"id", "A"}}}});
    }
    const Json step = {{"type", input.PickValueInArray({"TemplateProcessing", "ByteLevel", "x"})}, {"single", single}};
    file["post_processor"] = input.ConsumeBool() ? step : Json{{"type", "Sequence"}, {"processors", {step}}};
  }
  // One fault, of any kind, at any place.
  if (input.ConsumeIntegralInRange(0, 3) == 0) {
    const Json flat = file.flatten();
    auto entry = flat.begin();
    std::advance(entry, input.ConsumeIntegralInRange<std::size_t>(0, flat.size() - 1));
    file[Json::json_pointer(entry.key())] = std::vector<Json>{
        nullptr, -1, 1e9, 0.5, "x", Json::array(), Json::object(), true, 7}[input.ConsumeIntegralInRange(0, 8)];
  }
  return file;
}

void check(const std::string& file, const std::string& config, const std::string& text) {
  try {
    const TokenizerData data = read_tokenizer_json(file, config);
    const Tokenizer tokenizer(data);
    const std::vector<TokenId> ids = tokenizer.encode(text);
    for (const TokenId id : ids) {
      FUZZ_CHECK(id >= 0 && std::size_t(id) < tokenizer.vocab_size());
      FUZZ_CHECK(!tokenizer.is_special(id) || id == data.unknown);
    }
    tokenizer.decode(ids);
    tokenizer.encode(text, {.add_special = true, .parse_special = true});
    // What is written as GGUF is the same tokenizer.
    GgufMetadataBuilder builder;
    write_tokenizer_gguf(data, builder);
    const GgufMetadata metadata = builder.build();
    FUZZ_CHECK(Tokenizer(read_tokenizer_gguf(metadata)).encode(text) == ids);
  } catch (const InvalidFile&) {
  } catch (const SystemFailure&) {  // a pattern that takes too many steps
  }
}

/// Text and pattern alone: many more a second than whole files.
void check_regex(FuzzedDataProvider& input) {
  const Json chosen = pattern(input);
  if (!chosen.contains("Regex")) return;
  std::string text = input.ConsumeRemainingBytesAsString();
  text.resize(utf8_valid_len(text));
  try {
    std::size_t last = 0;
    Regex(chosen["Regex"].get<std::string>()).for_each_match(text, [&](std::size_t begin, std::size_t end) {
      FUZZ_CHECK(last <= begin && begin < end && end <= text.size());
      last = end;
    });
  } catch (const InvalidFile&) {
  } catch (const SystemFailure&) {  // takes too many steps
  }
}

/// The rules of a file, without its vocabulary.
void check_rules(FuzzedDataProvider& input) {
  Json file = Json::object();
  if (input.ConsumeBool()) file["normalizer"] = normalizer(input, 0);
  if (input.ConsumeBool()) file["pre_tokenizer"] = pre_tokenizer(input, 0);
  try {
    TokenizerData data;
    TokenizerRules rules = read_tokenizer_rules(JsonObject::parse(file.dump(), "file"));
    data.normalizers = std::move(rules.normalizers);
    const PreTokenizer pre(rules.splits);
    std::string text = input.ConsumeRandomLengthString(200);
    begins_with_word(text);
    FUZZ_CHECK(leading_space(text) <= text.size() && trailing_space(text) <= text.size());
    text = TextNormalizer(data).apply(text, true, {});
    bool keeps_all = true;
    for (const SplitStep& step : rules.splits) {
      keeps_all &= step.behavior != SplitStep::Behavior::removed && step.kind != SplitStep::Kind::prefix_space &&
                   step.kind != SplitStep::Kind::metaspace;
    }
    std::string joined;
    pre.split(text, true, [&](std::string_view piece) {
      FUZZ_CHECK(!piece.empty());
      joined += piece;
    });
    if (keeps_all) FUZZ_CHECK(joined == text);
    const AddedTokens added({{"word", {.id = 1, .strip_left = true, .strip_right = true, .single_word = true}, false}});
    added.scan(text, true, {}, [](std::size_t begin, std::size_t end) { FUZZ_CHECK(begin < end); }, [](TokenId) {});
  } catch (const InvalidFile&) {
  } catch (const SystemFailure&) {
  }
}

void run(FuzzedDataProvider& input) {
  const int kind = input.ConsumeIntegralInRange(0, 7);
  if (kind == 1 || kind == 2) return check_regex(input);
  if (kind == 3 || kind == 4) return check_rules(input);
  if (kind == 0) {
    const std::string config = input.ConsumeRandomLengthString(200);
    return check(input.ConsumeRandomLengthString(), config, "a b");
  }
  Json config = Json::object();
  if (input.ConsumeBool()) {
    config = {{"bos_token", "<s>"}, {"eos_token", {{"content", "</s>"}}}, {"add_bos_token", input.ConsumeBool()}};
    if (input.ConsumeBool()) {
      config["chat_template"] = "x";
    } else {
      config["chat_template"] = Json::array({{{"name", "default"}, {"template", "y"}}});
    }
  }
  const std::string file = small_file(input).dump();
  check(file, config.dump(), input.ConsumeRemainingBytesAsString());
}

}  // namespace
}  // namespace ops_transformer::llm

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzedDataProvider input(data, size);
  ops_transformer::llm::run(input);
  return 0;
}
