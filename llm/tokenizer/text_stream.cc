// SPDX-License-Identifier: Apache-2.0
#include "llm/tokenizer/text_stream.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "llm/tokenizer/utf8.h"
#include "ops_transformer/base/error.h"

namespace ops_transformer::llm {

std::string Utf8Stream::push(std::string_view bytes) {
  open_ += bytes;
  std::string out;
  std::string_view left = open_;
  while (!left.empty()) {
    const std::size_t valid = utf8_valid_len(left);
    out += left.substr(0, valid);
    left.remove_prefix(valid);
    if (left.empty()) break;
    const Utf8Step step = utf8_step(left);
    if (step.kind == Utf8Step::Kind::incomplete) break;
    out += kReplacementCharacter;
    left.remove_prefix(step.len);
  }
  open_.erase(0, open_.size() - left.size());
  return out;
}

std::string Utf8Stream::finish() {
  const bool open = !open_.empty();
  open_.clear();
  return std::string(open ? kReplacementCharacter : "");
}

StopMatcher::StopMatcher(std::span<const std::string> stops) {
  for (std::size_t i = 0; i < stops.size(); ++i) {
    const std::string& text = stops[i];
    if (text.empty()) throw InvalidArgument(fmt::format("stops: string {} is empty", i));
    Stop stop{text, std::vector<std::size_t>(text.size(), 0), 0};
    for (std::size_t end = 1, border = 0; end < text.size(); ++end) {
      while (border > 0 && text[end] != text[border]) border = stop.fallback[border - 1];
      if (text[end] == text[border]) ++border;
      stop.fallback[end] = border;
    }
    stops_.push_back(std::move(stop));
  }
}

std::string StopMatcher::push(std::string_view text) {
  if (stopped_) return {};
  if (stops_.empty()) return std::string(text);
  std::size_t held = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    held = 0;
    std::size_t complete = 0;
    for (Stop& stop : stops_) {
      while (stop.matched > 0 && stop.text[stop.matched] != text[i]) stop.matched = stop.fallback[stop.matched - 1];
      if (stop.text[stop.matched] == text[i]) ++stop.matched;
      held = std::max(held, stop.matched);
      if (stop.matched == stop.text.size()) complete = std::max(complete, stop.matched);
    }
    if (complete > 0) {
      stopped_ = true;
      held_ += text.substr(0, i + 1);
      held_.resize(held_.size() - complete);
      return std::exchange(held_, {});
    }
  }
  if (text.empty()) return {};
  held_ += text;
  std::string out = held_.substr(0, held_.size() - held);
  held_.erase(0, out.size());
  return out;
}

std::string StopMatcher::finish() { return std::exchange(held_, {}); }

TextStream::TextStream(const Tokenizer& tokenizer, std::span<const std::string> stops, std::optional<TokenId> previous)
    : tokenizer_(&tokenizer), previous_(previous), stop_(stops) {}

std::string TextStream::push(TokenId id) {
  const std::string bytes = tokenizer_->decode({&id, 1}, {.previous = previous_});
  previous_ = id;
  return stop_.push(utf8_.push(bytes));
}

std::string TextStream::finish() {
  std::string text = stop_.push(utf8_.finish());
  text += stop_.finish();
  return text;
}

}  // namespace ops_transformer::llm
