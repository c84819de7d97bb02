// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "llm/tokenizer/regex.h"
#include "llm/tokenizer/tokenizer_data.h"

namespace ops_transformer::llm {

/// Cuts text into the pre-tokens that no token reaches across, by rules that each cut the pieces of the one before. One
/// object serves any number of threads.
class PreTokenizer {
 public:
  /// Throws InvalidFile for a pattern that can't be used.
  explicit PreTokenizer(std::span<const SplitStep> steps);

  /// Calls `piece` with each pre-token in turn; together they are the text, but for what a rule removes or puts in. A
  /// run of bytes that are not UTF-8 is one. `first`: the text is the first of an encoding.
  void split(std::string_view text, bool first, const std::function<void(std::string_view)>& piece) const;

 private:
  struct Step {
    SplitStep step;
    std::shared_ptr<const Regex> regex;
  };
  using Pieces = std::function<void(std::string_view)>;
  void run(std::size_t step, std::string_view text, bool first, const Pieces& piece) const;
  void cut(const Step& step, std::string_view text, const Pieces& piece) const;

  std::vector<Step> steps_;
  bool byte_level_ = false;  // the last rule sees GPT-2's printable alphabet
};

}  // namespace ops_transformer::llm
