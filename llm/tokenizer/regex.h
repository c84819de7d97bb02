// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string_view>

namespace ops_transformer::llm {

/// A regular expression of tokenizer.json, whose engine is Oniguruma, run by PCRE2 with the same matches: classes as
/// that engine knows them. Those of known models run in time linear in the text. Any number of threads may use one.
class Regex {
 public:
  /// Throws InvalidFile, naming the pattern: it is not well-formed, or uses what can't be carried over (backreferences,
  /// recursion, \b and the like).
  explicit Regex(std::string_view pattern);
  ~Regex();
  Regex(const Regex&) = delete;
  Regex& operator=(const Regex&) = delete;

  /// Calls match(begin, end) for the matches from left to right, as far as they are not empty. `text` is UTF-8. Throws
  /// SystemFailure where a pattern takes too many steps.
  void for_each_match(std::string_view text, const std::function<void(std::size_t, std::size_t)>& match) const;

 private:
  struct Compiled;
  std::unique_ptr<Compiled> compiled_;
};

}  // namespace ops_transformer::llm
