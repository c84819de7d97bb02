// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "llm/tokenizer/tokenizer.h"
#include "ops_transformer/base/export.h"

namespace ops_transformer::llm {

struct ChatMessage {
  std::string role;  // "system", "user", "assistant"
  std::string content;
};

/// How messages become a prompt: ChatML, `<|im_start|>role\ncontent<|im_end|>\n`. The turn marks go in as token ids;
/// role and content are encoded as plain text, so a message can't forge a turn.
class OPS_TRANSFORMER_API ChatTemplate {
 public:
  /// Reads tokenizer.chat_template; `tokenizer` must outlive the object. A file without one, or with one of another
  /// format, gets ChatML and a warning. Throws InvalidFile where the vocabulary lacks ChatML's turn marks.
  explicit ChatTemplate(const Tokenizer& tokenizer);

  /// The prompt's tokens. `add_generation_prompt` opens the assistant's turn at the end. A conversation that does not
  /// begin with a system message gets the template's own, if it has one. Throws InvalidArgument for no messages or an
  /// empty role.
  std::vector<TokenId> encode(std::span<const ChatMessage> messages, bool add_generation_prompt = true) const;
  /// The same prompt as text, for people to read.
  std::string render(std::span<const ChatMessage> messages, bool add_generation_prompt = true) const;

  /// The system message of conversations that bring none; empty where the template has none.
  const std::string& default_system_message() const noexcept { return default_system_message_; }
  /// The token that ends a turn.
  TokenId end_of_turn() const noexcept { return end_; }
  /// What was assumed, one sentence each; for the caller to show.
  const std::vector<std::string>& warnings() const noexcept { return warnings_; }

 private:
  template <class OnMark, class OnText>
  void walk(std::span<const ChatMessage> messages, bool add_generation_prompt, OnMark on_mark, OnText on_text) const;

  const Tokenizer* tokenizer_;
  TokenId start_ = 0, end_ = 0;
  std::string default_system_message_;
  std::vector<std::string> warnings_;
};

}  // namespace ops_transformer::llm
