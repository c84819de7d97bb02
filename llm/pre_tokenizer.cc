// SPDX-License-Identifier: Apache-2.0
#include "llm/pre_tokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <array>
#include <cstdint>
#include <new>

#include "llm/utf8.h"
#include "ops_transformer/base/error.h"

namespace ops_transformer::llm {
namespace {

// Unicode's White_Space written out, since PCRE2's own \s adds U+180E, which the engine behind the published tokenizers
// does not.
#define SPACE \
  "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
// PCRE2 of Debian 12 knows Unicode 14. Letters and numbers of Unicode 15 and 16 are written out, as that is what the
// engine behind the published tokenizers (0.23) knows; its digit splitter knows Unicode 17's numbers too.
#define LETTER                                                                                     \
  "\\p{L}\\x{1c89}-\\x{1c8a}\\x{a7cb}-\\x{a7cd}\\x{a7da}-\\x{a7dc}\\x{105c0}-\\x{105f3}"           \
  "\\x{10d4a}-\\x{10d65}\\x{10d6f}-\\x{10d85}\\x{10ec2}-\\x{10ec4}\\x{1123f}-\\x{11240}"           \
  "\\x{11380}-\\x{11389}\\x{1138b}\\x{1138e}\\x{11390}-\\x{113b5}\\x{113b7}\\x{113d1}\\x{113d3}"   \
  "\\x{11bc0}-\\x{11be0}\\x{11f02}\\x{11f04}-\\x{11f10}\\x{11f12}-\\x{11f33}\\x{1342f}"            \
  "\\x{13441}-\\x{13446}\\x{13460}-\\x{143fa}\\x{16100}-\\x{1611d}\\x{16d40}-\\x{16d6c}\\x{18cff}" \
  "\\x{1b132}\\x{1b155}\\x{1df25}-\\x{1df2a}\\x{1e030}-\\x{1e06d}\\x{1e4d0}-\\x{1e4eb}"            \
  "\\x{1e5d0}-\\x{1e5ed}\\x{1e5f0}\\x{2b739}\\x{2ebf0}-\\x{2ee5d}\\x{31350}-\\x{323af}"
#define NUMBER                                                                                 \
  "\\p{N}\\x{10d40}-\\x{10d49}\\x{116d0}-\\x{116e3}\\x{11bf0}-\\x{11bf9}\\x{11f50}-\\x{11f59}" \
  "\\x{16130}-\\x{16139}\\x{16d70}-\\x{16d79}\\x{1ccf0}-\\x{1ccf9}\\x{1d2c0}-\\x{1d2d3}"       \
  "\\x{1e4f0}-\\x{1e4f9}\\x{1e5f1}-\\x{1e5fa}"
#define DIGIT NUMBER "\\x{11de0}-\\x{11de9}\\x{16ff4}-\\x{16ff6}"
#define CONTRACTIONS "'s|'t|'re|'ve|'m|'ll|'d"

struct Rule {
  std::string_view name;
  const char* pattern;
  bool takes_whole_tokens;
  bool adds_bos_by_default;
};

constexpr const char* kGpt2 = CONTRACTIONS "| ?[" LETTER "]+| ?[" NUMBER "]+| ?[^" SPACE LETTER NUMBER "]+|[" SPACE
                                           "]+(?![^" SPACE "])|[" SPACE "]+";
// Every digit stands alone, and GPT-2's rule sees the text between digits only: spaces before a digit end such a text.
constexpr const char* kSmolLm = CONTRACTIONS "|[" DIGIT "]| ?[" LETTER "]+| ?[^" SPACE LETTER DIGIT "]+|[" SPACE
                                             "]+(?![^" SPACE DIGIT "])|[" SPACE "]+";
constexpr const char* kLlama3 =
    "(?i:" CONTRACTIONS ")|[^\\r\\n" LETTER NUMBER "]?[" LETTER "]+|[" NUMBER "]{1,3}| ?[^" SPACE LETTER NUMBER
    "]+[\\r\\n]*|[" SPACE "]*[\\r\\n]+|[" SPACE "]+(?![^" SPACE "])|[" SPACE "]+";
#undef SPACE
#undef LETTER
#undef NUMBER
#undef DIGIT
#undef CONTRACTIONS

constexpr std::array<Rule, 6> kRules = {{{"smollm", kSmolLm, false, false},
                                         {"default", kGpt2, false, false},
                                         {"gpt-2", kGpt2, false, false},
                                         {"llama-bpe", kLlama3, true, true},
                                         {"llama3", kLlama3, true, true},
                                         {"llama-v3", kLlama3, true, true}}};

std::string message_of(int code) {
  std::array<PCRE2_UCHAR, 200> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

struct FreeMatchData {
  void operator()(pcre2_match_data* data) const noexcept { pcre2_match_data_free(data); }
};

}  // namespace

struct PreTokenizer::Pattern {
  explicit Pattern(const char* text) {
    int code = 0;
    std::size_t offset = 0;
    compiled = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text), PCRE2_ZERO_TERMINATED,
                             PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED | PCRE2_NO_AUTO_CAPTURE, &code, &offset, nullptr);
    if (!compiled) throw SystemFailure(fmt::format("PCRE2 can't compile a pre-tokenizer: {}", message_of(code)));
    // Where the system forbids executable pages this fails and pcre2_match interprets.
    pcre2_jit_compile(compiled, PCRE2_JIT_COMPLETE);
  }
  ~Pattern() { pcre2_code_free(compiled); }
  Pattern(const Pattern&) = delete;
  Pattern& operator=(const Pattern&) = delete;
  pcre2_code* compiled = nullptr;
};

PreTokenizer::PreTokenizer(std::string_view name) {
  for (const Rule& rule : kRules) {
    if (rule.name != name) continue;
    pattern_ = std::make_unique<Pattern>(rule.pattern);
    takes_whole_tokens_ = rule.takes_whole_tokens;
    adds_bos_by_default_ = rule.adds_bos_by_default;
    return;
  }
  std::string known;
  for (const Rule& rule : kRules) known += fmt::format("{}{}", known.empty() ? "" : ", ", rule.name);
  throw InvalidFile(
      fmt::format("key 'tokenizer.ggml.pre' names the unknown pre-tokenizer '{}'; known are {}", shown(name), known));
}

PreTokenizer::~PreTokenizer() = default;
PreTokenizer::PreTokenizer(PreTokenizer&&) noexcept = default;
PreTokenizer& PreTokenizer::operator=(PreTokenizer&&) noexcept = default;

void PreTokenizer::split(std::string_view text, const std::function<void(std::string_view)>& piece) const {
  const std::unique_ptr<pcre2_match_data, FreeMatchData> match_data(pcre2_match_data_create(1, nullptr));
  if (!match_data) throw std::bad_alloc();
  while (!text.empty()) {
    const std::size_t valid = utf8_valid_len(text);
    if (valid > 0) split_utf8(text.substr(0, valid), match_data.get(), piece);
    text.remove_prefix(valid);
    std::size_t invalid = 0;
    while (invalid < text.size()) {
      const Utf8Step step = utf8_step(text.substr(invalid));
      if (step.kind == Utf8Step::Kind::valid) break;
      invalid += step.len;
    }
    if (invalid > 0) piece(text.substr(0, invalid));
    text.remove_prefix(invalid);
  }
}

void PreTokenizer::split_utf8(std::string_view text, void* match_data,
                              const std::function<void(std::string_view)>& piece) const {
  auto* const match = static_cast<pcre2_match_data*>(match_data);
  const auto* const subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  for (std::size_t pos = 0; pos < text.size();) {
    // Checked already, once: PCRE2's own check would read the rest of the text for every pre-token.
    const int rc = pcre2_match(pattern_->compiled, subject, text.size(), pos, PCRE2_NO_UTF_CHECK, match, nullptr);
    if (rc < 0) throw SystemFailure(fmt::format("PCRE2 can't split text at byte {}: {}", pos, message_of(rc)));
    const std::size_t end = pcre2_get_ovector_pointer(match)[1];
    piece(text.substr(pos, end - pos));
    pos = end;
  }
}

}  // namespace ops_transformer::llm
