// SPDX-License-Identifier: Apache-2.0
#include "llm/tokenizer/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <new>
#include <string>

#include "llm/tokenizer/regex_translation.h"
#include "llm/tokenizer/utf8.h"
#include "ops_transformer/base/error.h"

namespace ops_transformer::llm {
namespace {

constexpr std::size_t kMaxPatternBytes = 1 << 16;

std::string message_of(int code) {
  std::array<PCRE2_UCHAR, 200> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

struct Free {
  void operator()(pcre2_match_data* data) const noexcept { pcre2_match_data_free(data); }
  void operator()(pcre2_match_context* context) const noexcept { pcre2_match_context_free(context); }
  void operator()(pcre2_code* code) const noexcept { pcre2_code_free(code); }
};

}  // namespace

struct Regex::Compiled {
  std::string pattern;
  std::unique_ptr<pcre2_code, Free> code;
};

Regex::Regex(std::string_view pattern) : compiled_(std::make_unique<Compiled>()) {
  if (pattern.size() > kMaxPatternBytes) {
    throw InvalidFile(fmt::format("the pattern '{}' has {} bytes, the limit is {}", shown(pattern), pattern.size(),
                                  kMaxPatternBytes));
  }
  compiled_->pattern = pattern;
  const std::string text = translate_regex(pattern);
  int code = 0;
  std::size_t offset = 0;
  compiled_->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                                      PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NO_AUTO_CAPTURE, &code, &offset,
                                      nullptr));
  if (!compiled_->code) {
    throw InvalidFile(fmt::format("the pattern '{}' can't be used: {}", shown(pattern), message_of(code)));
  }
  // Where the system forbids executable pages this fails and pcre2_match interprets.
  pcre2_jit_compile(compiled_->code.get(), PCRE2_JIT_COMPLETE);
}

Regex::~Regex() = default;

void Regex::for_each_match(std::string_view text, const std::function<void(std::size_t, std::size_t)>& match) const {
  const std::unique_ptr<pcre2_match_data, Free> data(pcre2_match_data_create(1, nullptr));
  const std::unique_ptr<pcre2_match_context, Free> context(pcre2_match_context_create(nullptr));
  if (!data || !context) throw std::bad_alloc();
  // A step or two for each byte is what a sound pattern takes; PCRE2's own limit of 10^7 is too low for long texts.
  const std::size_t limit = 10'000'000 + 8 * text.size();
  pcre2_set_match_limit(context.get(), static_cast<std::uint32_t>(
                                           std::min<std::size_t>(limit, std::numeric_limits<std::uint32_t>::max())));
  const auto* const subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  for (std::size_t pos = 0; pos < text.size();) {
    // Checked already, once: PCRE2's own check would read the rest of the text for every match.
    int rc =
        pcre2_match(compiled_->code.get(), subject, text.size(), pos, PCRE2_NO_UTF_CHECK, data.get(), context.get());
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {
      rc = pcre2_match(compiled_->code.get(), subject, text.size(), pos, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data.get(),
                       context.get());
    }
    if (rc == PCRE2_ERROR_NOMATCH) return;
    if (rc < 0) {
      throw SystemFailure(fmt::format("the tokenizer's pattern '{}' can't be matched at byte {} of {}: {}",
                                      shown(compiled_->pattern), pos, text.size(), message_of(rc)));
    }
    const std::size_t begin = pcre2_get_ovector_pointer(data.get())[0];
    const std::size_t end = pcre2_get_ovector_pointer(data.get())[1];
    if (begin < end) {
      match(begin, end);
      pos = end;
    } else {
      if (begin >= text.size()) return;
      pos = begin + utf8_step(text.substr(begin)).len;
    }
  }
}

}  // namespace ops_transformer::llm
