// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace ops_transformer::llm {

/// Cuts text into the pre-tokens that byte-pair encoding never merges across, by the rule that GGUF names in
/// `tokenizer.ggml.pre`. One object serves any number of threads.
class PreTokenizer {
 public:
  /// `smollm`, `default` and `gpt-2`, `llama-bpe` (also written `llama3`, `llama-v3`). Throws InvalidFile, which names
  /// the rule and the known ones.
  explicit PreTokenizer(std::string_view name);
  ~PreTokenizer();
  PreTokenizer(PreTokenizer&&) noexcept;
  PreTokenizer& operator=(PreTokenizer&&) noexcept;

  /// Calls `piece` with each pre-token in turn; together they are the text. A run of bytes that are not UTF-8 is one.
  void split(std::string_view text, const std::function<void(std::string_view)>& piece) const;

  /// A pre-token that is itself a token is taken whole, whatever the merges say.
  bool takes_whole_tokens() const noexcept { return takes_whole_tokens_; }
  /// A file that does not say so wants the text to begin with BOS.
  bool adds_bos_by_default() const noexcept { return adds_bos_by_default_; }

 private:
  struct Pattern;
  void split_utf8(std::string_view text, void* match_data, const std::function<void(std::string_view)>& piece) const;

  std::unique_ptr<Pattern> pattern_;
  bool takes_whole_tokens_ = false;
  bool adds_bos_by_default_ = false;
};

}  // namespace ops_transformer::llm
