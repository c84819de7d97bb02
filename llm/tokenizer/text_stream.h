// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "llm/tokenizer/tokenizer.h"
#include "ops_transformer/base/export.h"

namespace ops_transformer::llm {

/// Turns bytes that come in pieces into UTF-8: a character that is not whole yet is held back; bytes that can't become
/// one are given as U+FFFD, one for each longest well-formed beginning, as Python's and the Web's decoders do.
class OPS_TRANSFORMER_API Utf8Stream {
 public:
  std::string push(std::string_view bytes);
  /// U+FFFD where a character was left open; the stream is then as new.
  std::string finish();

 private:
  std::string open_;
};

/// Holds text back while it could still become a stop string, and ends at the first one that is complete; of two that
/// end at the same byte the longer. The result does not depend on how the text is cut into pieces.
class OPS_TRANSFORMER_API StopMatcher {
 public:
  StopMatcher() = default;
  /// Throws InvalidArgument for an empty stop string.
  explicit StopMatcher(std::span<const std::string> stops);
  /// The text that is now safe to show. Nothing after a stop string was found.
  std::string push(std::string_view text);
  bool stopped() const noexcept { return stopped_; }
  /// The text that was held back, where no stop string was found.
  std::string finish();

 private:
  struct Stop {
    std::string text;
    std::vector<std::size_t> fallback;  // Knuth-Morris-Pratt: longest border of each beginning
    std::size_t matched = 0;            // longest beginning of `text` that the stream ends with
  };
  std::vector<Stop> stops_;
  std::string held_;
  bool stopped_ = false;
};

/// Tokens in, text to show out: whole characters only, stop strings cut off, control tokens silent.
class OPS_TRANSFORMER_API TextStream {
 public:
  /// `tokenizer` must outlive the stream; `previous` is the token that the stream continues, if any
  /// (DecodeOptions::previous). Throws InvalidArgument for an empty stop string.
  explicit TextStream(const Tokenizer& tokenizer, std::span<const std::string> stops = {},
                      std::optional<TokenId> previous = {});
  /// Throws InvalidArgument for an id outside the vocabulary.
  std::string push(TokenId id);
  /// True once a stop string was complete.
  bool stopped() const noexcept { return stop_.stopped(); }
  /// What was held back: call it when generation ends for another reason than a stop string.
  std::string finish();

 private:
  const Tokenizer* tokenizer_;
  std::optional<TokenId> previous_;
  Utf8Stream utf8_;
  StopMatcher stop_;
};

}  // namespace ops_transformer::llm
