// SPDX-License-Identifier: Apache-2.0
#include "llm/tokenizer/pre_tokenizer_rules.h"

#include <fmt/format.h>

#include "llm/tokenizer/utf8.h"
#include "ops_transformer/base/error.h"

namespace ops_transformer::llm {
namespace {

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define SPACES "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

constexpr std::string_view kGpt2 = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
constexpr std::string_view kLlama3 =
    CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACES;
constexpr std::string_view kQwen2 =
    CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACES;
constexpr std::string_view kUpperLower =
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+";
constexpr std::string_view kUpper =
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*";
constexpr std::string_view kOthers = " ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES;
constexpr std::string_view kDeepSeekLetters =
    "\\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\u1f7dᾀ-ᾴᾶ-"
    "ᾼ\u1fbeῂ-"
    "ῄῆ-ῌῐ-\u1fd3ῖ-\u1fdbῠ-Ῥῲ-ῴῶ-ῼ"
    "ℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+";
constexpr std::string_view kDeepSeek3 =
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| "
    "?[\\p{P}\\p{S}]+[\\r\\n]*|" SPACES;
#undef SPACES

SplitStep regex(std::string_view pattern) { return {.kind = SplitStep::Kind::regex, .pattern = std::string(pattern)}; }

std::vector<PreTokenizerRule> make_rules() {
  const SplitStep gpt2 = regex(kGpt2), digit = regex("\\p{Digits}");
  SplitStep punctuation = regex("[\\p{P}\\p{Ascii_Punctuation}]"), digits = digit;
  punctuation.behavior = digits.behavior = SplitStep::Behavior::contiguous;
  const std::vector<NormalizerStep> nfc = {{.kind = NormalizerStep::Kind::nfc}};
  const std::string cased = fmt::format("{}|{}|", kUpperLower, kUpper);
  const std::string cased_contracted = fmt::format("{0}{2}?|{1}{2}?|", kUpperLower, kUpper, CONTRACTIONS);
  return {
      {{"gpt-2", "default", "phi-2"}, {}, {gpt2}},
      {{"olmo", "mpt"}, nfc, {gpt2}},
      {{"smollm", "starcoder", "refact"}, {}, {digit, gpt2}},
      {{"command-r"}, nfc, {digit, gpt2}},
      {{"llama-bpe", "llama3", "llama-v3"}, {}, {regex(kLlama3)}, true, true},
      {{"dbrx", "smaug-bpe"}, {}, {regex(kLlama3)}},
      {{"qwen2", "deepseek-r1-qwen"}, nfc, {regex(kQwen2)}},
      {{"gpt-4o"}, {}, {regex(cased_contracted + "\\p{N}{1,3}|" + std::string(kOthers))}},
      {{"tekken"}, {}, {regex(cased + "\\p{N}|" + std::string(kOthers))}, true, true},
      {{"falcon"}, {}, {punctuation, gpt2, {.kind = SplitStep::Kind::byte_level}, digits, regex("[0-9][0-9][0-9]")}},
      {{"deepseek-llm"},
       {},
       {regex("[\\r\\n]"), regex(kDeepSeekLetters), regex("\\s?[!-/:-~！-／：-～‘-‟　-。]+"), regex("\\s+$"),
        regex("[一-龥ࠀ-一가-퟿]+"), digits}},
      {{"deepseek-coder"},
       {},
       {regex("[\\r\\n]"), regex("\\s?\\p{L}+"), regex("\\s?\\p{P}+"), regex("[一-龥ࠀ-一가-퟿]+"), digit}},
      {{"deepseek-v3"}, {}, {regex("\\p{N}{1,3}"), regex("[一-龥぀-ゟ゠-ヿ]+"), regex(kDeepSeek3)}},
  };
}

}  // namespace

std::string_view gpt2_pattern() { return kGpt2; }

std::span<const PreTokenizerRule> pre_tokenizer_rules() {
  static const std::vector<PreTokenizerRule> kRules = make_rules();
  return kRules;
}

const PreTokenizerRule& find_pre_tokenizer_rule(std::string_view name) {
  std::string known;
  for (const PreTokenizerRule& rule : pre_tokenizer_rules()) {
    for (const std::string_view its_name : rule.names) {
      if (its_name == name) return rule;
      known += fmt::format("{}{}", known.empty() ? "" : ", ", its_name);
    }
  }
  throw InvalidFile(
      fmt::format("key 'tokenizer.ggml.pre' names the unknown pre-tokenizer '{}'; known are {}", shown(name), known));
}

}  // namespace ops_transformer::llm
