// SPDX-License-Identifier: Apache-2.0
#include "llm/tokenizer/tokenizer_json_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "llm/tokenizer/pre_tokenizer_rules.h"
#include "llm/tokenizer/utf8.h"

namespace ops_transformer::llm {
namespace {

using Json = nlohmann::json;

/// {"String": …} or {"Regex": …}.
std::pair<std::string, bool> read_pattern(const JsonObject& step) {
  const auto pattern = step.object("pattern");
  const auto literal = pattern ? pattern->text("String") : std::nullopt;
  const auto regex = pattern ? pattern->text("Regex") : std::nullopt;
  if (literal.has_value() == regex.has_value()) step.refuse("pattern", "must have a String or a Regex");
  if ((literal ? *literal : *regex).empty()) step.refuse("pattern", "is empty");
  return {literal ? *literal : *regex, regex.has_value()};
}

SplitStep::Behavior read_behavior(const JsonObject& step, const std::string& fallback) {
  using Behavior = SplitStep::Behavior;
  static constexpr std::array<std::pair<std::string_view, Behavior>, 5> kNames = {
      {{"Isolated", Behavior::isolated},
       {"Removed", Behavior::removed},
       {"MergedWithPrevious", Behavior::merged_with_previous},
       {"MergedWithNext", Behavior::merged_with_next},
       {"Contiguous", Behavior::contiguous}}};
  const std::string name = step.text("behavior").value_or(fallback);
  for (const auto& [known, behavior] : kNames) {
    // Older files write it in lower case.
    if (std::equal(known.begin(), known.end(), name.begin(), name.end(),
                   [](char a, char b) { return (a | 0x20) == (b | 0x20); })) {
      return behavior;
    }
  }
  step.refuse("behavior", fmt::format("is '{}', which is not known", shown(name)));
}

void read_normalizer(const JsonObject& step, TokenizerRules& rules) {
  using Kind = NormalizerStep::Kind;
  const std::string type = step.text("type").value_or("");
  static constexpr std::array<std::pair<std::string_view, Kind>, 5> kPlain = {{{"NFC", Kind::nfc},
                                                                               {"NFD", Kind::nfd},
                                                                               {"NFKC", Kind::nfkc},
                                                                               {"NFKD", Kind::nfkd},
                                                                               {"Lowercase", Kind::lowercase}}};
  for (const auto& [name, kind] : kPlain) {
    if (type == name) return rules.normalizers.push_back({.kind = kind});
  }
  if (type == "Sequence") {
    for (const JsonObject& part : step.elements("normalizers")) read_normalizer(part, rules);
  } else if (type == "Strip") {
    rules.normalizers.push_back({.kind = Kind::strip,
                                 .left = step.truth("strip_left").value_or(true),
                                 .right = step.truth("strip_right").value_or(true)});
  } else if (type == "Prepend") {
    rules.normalizers.push_back({.kind = Kind::prepend, .content = step.text("prepend").value_or("")});
  } else if (type == "Replace") {
    const auto [pattern, regex] = read_pattern(step);
    rules.normalizers.push_back(
        {.kind = Kind::replace, .pattern = pattern, .content = step.text("content").value_or(""), .regex = regex});
  } else {
    step.refuse("type",
                fmt::format("is the normalizer '{}', known are NFC, NFD, NFKC, NFKD, Lowercase, Strip, Prepend, "
                            "Replace, Sequence",
                            shown(type)));
  }
}

void read_metaspace(const JsonObject& step, TokenizerRules& rules) {
  if (step.text("replacement").value_or(std::string(kSpaceSymbol)) != kSpaceSymbol) {
    step.refuse("replacement", "is not U+2581, which is not supported");
  }
  const bool prefix = step.truth("add_prefix_space").value_or(true);
  const std::string scheme = step.text("prepend_scheme").value_or(prefix ? "always" : "never");
  if (scheme != "always" && scheme != "first" && scheme != "never") {
    step.refuse("prepend_scheme", fmt::format("is '{}', known are always, first, never", shown(scheme)));
  }
  rules.splits.push_back({.kind = SplitStep::Kind::metaspace,
                          .prefix_always = scheme == "always",
                          .prefix_first = scheme == "first",
                          .split = step.truth("split").value_or(true)});
}

void read_pre_tokenizer(const JsonObject& step, TokenizerRules& rules) {
  using Kind = SplitStep::Kind;
  using Behavior = SplitStep::Behavior;
  const auto add_regex = [&](std::string_view pattern, Behavior behavior, bool invert = false) {
    rules.splits.push_back(
        {.kind = Kind::regex, .pattern = std::string(pattern), .behavior = behavior, .invert = invert});
  };
  const std::string type = step.text("type").value_or("");
  if (type == "Sequence") {
    for (const JsonObject& part : step.elements("pretokenizers")) read_pre_tokenizer(part, rules);
  } else if (type == "ByteLevel") {
    if (rules.byte_level) step.refuse("type", "is a second ByteLevel");
    if (step.truth("add_prefix_space").value_or(true)) rules.splits.push_back({.kind = Kind::prefix_space});
    if (step.truth("use_regex").value_or(true)) add_regex(gpt2_pattern(), Behavior::isolated);
    rules.splits.push_back({.kind = Kind::byte_level});
    rules.byte_level = true;
  } else if (type == "Split") {
    const auto [pattern, regex] = read_pattern(step);
    rules.splits.push_back({.kind = regex ? Kind::regex : Kind::literal,
                            .pattern = pattern,
                            .behavior = read_behavior(step, ""),
                            .invert = step.truth("invert").value_or(false)});
  } else if (type == "Digits") {
    add_regex("\\p{Digits}",
              step.truth("individual_digits").value_or(false) ? Behavior::isolated : Behavior::contiguous);
  } else if (type == "Punctuation") {
    add_regex("[\\p{P}\\p{Ascii_Punctuation}]", read_behavior(step, "Isolated"));
  } else if (type == "Whitespace") {
    add_regex("[\\p{Rust_Word}]+|[^\\p{Rust_Word}\\s]+", Behavior::removed, true);
  } else if (type == "WhitespaceSplit") {
    add_regex("\\s", Behavior::removed);
  } else if (type == "CharDelimiterSplit") {
    rules.splits.push_back(
        {.kind = Kind::literal, .pattern = step.text("delimiter").value_or(""), .behavior = Behavior::removed});
  } else if (type == "Metaspace") {
    read_metaspace(step, rules);
  } else {
    step.refuse("type", fmt::format("is the pre-tokenizer '{}', known are ByteLevel, Split, Digits, Punctuation, "
                                    "Whitespace, WhitespaceSplit, CharDelimiterSplit, Metaspace, Sequence",
                                    shown(type)));
  }
}

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

bool name_byte_level(TokenizerData& data) {
  const auto& rules = pre_tokenizer_rules();
  const auto rule = std::find_if(rules.begin(), rules.end(), [&](const PreTokenizerRule& known) {
    return known.normalizers == data.normalizers && known.splits == data.splits &&
           known.takes_whole_tokens == data.takes_whole_tokens;
  });
  if (rule == rules.end()) return false;
  for (AddedToken& token : data.added) {
    // Composing text makes or takes away no such name.
    if (token.normalized && !is_ascii(data.tokens[static_cast<std::size_t>(token.id)])) return false;
    token.normalized = false;
  }
  data.pre = rule->names.front();
  return true;
}

bool name_sentencepiece(TokenizerData& data) {
  using Kind = NormalizerStep::Kind;
  const NormalizerStep prepend{.kind = Kind::prepend, .content = std::string(kSpaceSymbol)};
  const NormalizerStep replace{.kind = Kind::replace, .pattern = " ", .content = std::string(kSpaceSymbol)};
  const bool prefix = data.normalizers == std::vector<NormalizerStep>{prepend, replace};
  if (!prefix && data.normalizers != std::vector<NormalizerStep>{replace}) return false;
  // Once the spaces are gone, to cut at spaces does nothing.
  const auto idle = [](const SplitStep& step) { return step.kind == SplitStep::Kind::literal && step.pattern == " "; };
  if (!std::all_of(data.splits.begin(), data.splits.end(), idle) || data.takes_whole_tokens) return false;
  const auto num_bytes = std::count(data.types.begin(), data.types.end(), TokenType::byte);
  if (num_bytes != 256 && data.unknown && !data.fuse_unknown) return false;
  std::vector<AddedToken> added;
  for (const AddedToken& token : data.added) {
    const auto i = static_cast<std::size_t>(token.id);
    if (token.normalized) return false;
    if (data.types[i] == TokenType::user_defined && data.tokens[i].find(kSpaceSymbol) != std::string_view::npos) {
      // Text never has these as they are written: only merges make them.
      if (data.scores[i] == 0) return false;
      data.types[i] = TokenType::normal;
      continue;
    }
    if (data.types[i] == TokenType::user_defined && prefix) return false;
    added.push_back(token);
  }
  data.added = std::move(added);
  data.normalizers.clear();
  data.splits.clear();
  data.add_space_prefix = prefix;
  data.fuse_unknown = true;
  data.pre = "default";
  return true;
}

}  // namespace

TokenizerRules read_tokenizer_rules(const JsonObject& file) {
  TokenizerRules rules;
  if (const auto normalizer = file.object("normalizer")) read_normalizer(*normalizer, rules);
  if (const auto pre = file.object("pre_tokenizer")) read_pre_tokenizer(*pre, rules);
  // The alphabet is of no account to the model, which works on bytes.
  if (!rules.splits.empty() && rules.splits.back().kind == SplitStep::Kind::byte_level) rules.splits.pop_back();
  return rules;
}

bool name_tokenizer_rules(TokenizerData& data) {
  for (const AddedToken& token : data.added) {
    if (token.strip_left || token.strip_right || token.single_word) return false;
  }
  switch (data.model) {
    case TokenizerModel::byte_level_bpe:
      return name_byte_level(data);
    case TokenizerModel::sentencepiece_bpe:
      return name_sentencepiece(data);
    case TokenizerModel::unigram:
      break;
  }
  return false;
}

}  // namespace ops_transformer::llm
