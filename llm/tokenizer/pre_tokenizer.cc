// SPDX-License-Identifier: Apache-2.0
#include "llm/tokenizer/pre_tokenizer.h"

#include <fmt/format.h>

#include <string>

#include "llm/tokenizer/utf8.h"
#include "llm/tokenizer/vocabulary.h"

namespace ops_transformer::llm {
namespace {

/// Joins the matches of a rule, and what lies between them, to pieces as its behaviour says.
class Joiner {
 public:
  using Behavior = SplitStep::Behavior;
  Joiner(const SplitStep& step, std::string_view text, const std::function<void(std::string_view)>& piece)
      : step_(step), text_(text), piece_(piece) {}

  void add(std::size_t begin, std::size_t end, bool matched) {
    if (begin == end) return;
    matched ^= step_.invert;
    bool joins = false;
    switch (step_.behavior) {
      case Behavior::removed:
        if (matched) {
          flush();
          return;
        }
        break;
      case Behavior::isolated:
        break;
      case Behavior::contiguous:
        joins = matched == last_matched_;
        break;
      case Behavior::merged_with_previous:
        joins = matched && !last_matched_;
        break;
      case Behavior::merged_with_next:
        joins = !matched && last_matched_;
        break;
    }
    if (!joins || begin_ == end_) {
      flush();
      begin_ = begin;
    }
    end_ = end;
    last_matched_ = matched;
  }
  void flush() {
    if (begin_ < end_) piece_(text_.substr(begin_, end_ - begin_));
    begin_ = end_ = 0;
  }

 private:
  const SplitStep& step_;
  std::string_view text_;
  const std::function<void(std::string_view)>& piece_;
  std::size_t begin_ = 0, end_ = 0;
  bool last_matched_ = false;
};

}  // namespace

PreTokenizer::PreTokenizer(std::span<const SplitStep> steps) {
  for (const SplitStep& step : steps) {
    const bool regex = step.kind == SplitStep::Kind::regex;
    steps_.push_back({step, regex ? std::make_shared<const Regex>(step.pattern) : nullptr});
    byte_level_ |= step.kind == SplitStep::Kind::byte_level;
  }
}

void PreTokenizer::cut(const Step& step, std::string_view text, const Pieces& piece) const {
  Joiner joiner(step.step, text, piece);
  std::size_t done = 0;
  const auto match = [&](std::size_t begin, std::size_t end) {
    joiner.add(done, begin, false);
    joiner.add(begin, end, true);
    done = end;
  };
  if (step.regex) {
    step.regex->for_each_match(text, match);
  } else if (const std::string_view pattern = step.step.pattern; !pattern.empty()) {
    for (std::size_t at = 0; (at = text.find(pattern, at)) != std::string_view::npos; at += pattern.size()) {
      match(at, at + pattern.size());
    }
  }
  joiner.add(done, text.size(), false);
  joiner.flush();
}

void PreTokenizer::run(std::size_t i, std::string_view text, bool first, const Pieces& piece) const {
  if (i == steps_.size()) {
    if (!byte_level_) return piece(text);
    std::string bytes;
    append_byte_level(text, bytes);
    return piece(bytes);
  }
  const Step& step = steps_[i];
  const Pieces next = [&, begin = text.data()](std::string_view part) {
    run(i + 1, part, first && part.data() == begin, piece);
  };
  switch (step.step.kind) {
    case SplitStep::Kind::literal:
    case SplitStep::Kind::regex:
      return cut(step, text, next);
    case SplitStep::Kind::prefix_space:
      if (text.starts_with(' ')) return next(text);
      return run(i + 1, fmt::format(" {}", text), first, piece);
    case SplitStep::Kind::byte_level: {
      std::string printable;
      append_printable(text, printable);
      return run(i + 1, printable, first, piece);
    }
    case SplitStep::Kind::metaspace: {
      const bool prefix = (step.step.prefix_always || (step.step.prefix_first && first)) && !text.starts_with(' ') &&
                          !text.starts_with(kSpaceSymbol);
      std::string spaced(prefix ? kSpaceSymbol : "");
      append_replaced(text, " ", kSpaceSymbol, spaced);
      if (!step.step.split) return run(i + 1, spaced, first, piece);
      SplitStep before_spaces;
      before_spaces.pattern = kSpaceSymbol;
      before_spaces.behavior = SplitStep::Behavior::merged_with_next;
      const Pieces of_spaced = [&](std::string_view part) {
        run(i + 1, part, first && part.data() == spaced.data(), piece);
      };
      return cut({before_spaces, nullptr}, spaced, of_spaced);
    }
  }
}

void PreTokenizer::split(std::string_view text, bool first, const Pieces& piece) const {
  while (!text.empty()) {
    const std::size_t valid = utf8_valid_len(text);
    if (valid > 0) run(0, text.substr(0, valid), first, piece);
    first = first && valid == 0;
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

}  // namespace ops_transformer::llm
