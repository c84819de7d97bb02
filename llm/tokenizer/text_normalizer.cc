// SPDX-License-Identifier: Apache-2.0
#include "llm/tokenizer/text_normalizer.h"

#include <algorithm>
#include <utility>

#include "llm/tokenizer/unicode.h"
#include "llm/tokenizer/utf8.h"
#include "llm/tokenizer/vocabulary.h"

namespace ops_transformer::llm {
namespace {

bool is_ascii(std::string_view text) noexcept {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

/// What is not UTF-8 stays, and no match reaches across it.
std::string replaced(std::string_view text, const Regex& sought, std::string_view content) {
  std::string out;
  while (!text.empty()) {
    const std::string_view valid = text.substr(0, utf8_valid_len(text));
    std::size_t end = 0;
    sought.for_each_match(valid, [&](std::size_t match_begin, std::size_t match_end) {
      out += valid.substr(end, match_begin - end);
      out += content;
      end = match_end;
    });
    out += valid.substr(end);
    text.remove_prefix(valid.size());
    const std::size_t invalid = text.empty() ? 0 : utf8_step(text).len;
    out += text.substr(0, invalid);
    text.remove_prefix(invalid);
  }
  return out;
}

}  // namespace

TextNormalizer::TextNormalizer(const TokenizerData& data)
    : sentencepiece_(data.model != TokenizerModel::byte_level_bpe && data.normalizers.empty() && data.splits.empty()),
      add_space_(data.add_space_prefix),
      first_only_(data.space_prefix_first_only),
      unless_space_(data.space_prefix_unless_space),
      squeeze_(data.remove_extra_whitespaces),
      charsmap_(data.charsmap) {
  for (const NormalizerStep& step : data.normalizers) {
    steps_.push_back({step, step.regex ? std::make_shared<const Regex>(step.pattern) : nullptr});
  }
}

std::string TextNormalizer::sentencepiece(std::string_view text, bool first, const AddedTokens& added) const {
  // The text goes through in chunks: a user-defined token, a text that the map replaces, or a character.
  std::string out, mapped;
  bool after_space = squeeze_, begun = false;
  while (!text.empty()) {
    std::size_t len = added.user_defined_prefix(text);
    std::string_view chunk = text.substr(0, len);
    if (len == 0) {
      const Charsmap::Match match = charsmap_.find(text);
      len = match.len > 0 ? match.len : utf8_step(text).len;
      chunk = match.len > 0 ? match.replacement : text.substr(0, len);
    }
    text.remove_prefix(len);
    if (squeeze_ && !begun && chunk == " ") continue;
    if (!begun && add_space_ && (first || !first_only_) && !(unless_space_ && chunk.starts_with(' '))) out += ' ';
    begun = true;
    while (after_space && chunk.starts_with(' ')) chunk.remove_prefix(1);
    append_spaces(chunk, out);
    if (squeeze_ && !chunk.empty()) after_space = chunk.ends_with(' ');
  }
  while (squeeze_ && out.ends_with(' ')) out.pop_back();
  return out;
}

std::string TextNormalizer::apply(std::string_view text, bool first, const AddedTokens& added) const {
  if (sentencepiece_ && !squeeze_ && charsmap_.empty()) {
    const bool prefix = add_space_ && (first || !first_only_) && !text.empty() &&
                        !(unless_space_ && (text.starts_with(' ') || text.starts_with(kSpaceSymbol)));
    std::string out(prefix ? 1 : 0, ' ');
    append_spaces(text, out);
    return out;
  }
  if (sentencepiece_) return sentencepiece(text, first, added);
  std::string out(text);
  using Kind = NormalizerStep::Kind;
  for (const auto& [step, regex] : steps_) {
    switch (step.kind) {
      case Kind::nfc:
      case Kind::nfd:
      case Kind::nfkc:
      case Kind::nfkd:
        if (is_ascii(out)) break;
        out = normalized(out, step.kind == Kind::nfc    ? NormalizationForm::nfc
                              : step.kind == Kind::nfd  ? NormalizationForm::nfd
                              : step.kind == Kind::nfkc ? NormalizationForm::nfkc
                                                        : NormalizationForm::nfkd);
        break;
      case Kind::lowercase:
        out = lowercase(out);
        break;
      case Kind::strip:
        if (step.right) out.resize(out.size() - trailing_space(out));
        if (step.left) out.erase(0, leading_space(out));
        break;
      case Kind::prepend:
        if (!out.empty()) out.insert(0, step.content);
        break;
      case Kind::replace:
        if (regex) {
          out = replaced(out, *regex, step.content);
        } else {
          std::string changed;
          append_replaced(out, step.pattern, step.content, changed);
          out = std::move(changed);
        }
        break;
    }
  }
  return out;
}

}  // namespace ops_transformer::llm
