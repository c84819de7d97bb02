// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
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

/// A conversation as one text, in which it stays known what the messages brought: no control token is made from that.
struct ChatPrompt {
  std::string text;
  std::vector<TextRange> literal;  // the messages' parts of the text

  void add_template(std::string_view part) { text += part; }
  void add_literal(std::string_view part) {
    if (!part.empty()) literal.push_back({text.size(), text.size() + part.size()});
    text += part;
  }
};

/// The prompt's tokens. Where the model asks for BOS there is exactly one in front, whether or not the template writes
/// it. dropped_bytes: out, bytes without a token, which were left out.
OPS_TRANSFORMER_API std::vector<TokenId> encode_prompt(const Tokenizer& tokenizer, const ChatPrompt& prompt,
                                                       std::size_t* dropped_bytes = nullptr);

struct ChatFormat;

/// The chat templates that are built in. A file's own is Jinja; its text tells which of them it is, down to the system
/// message or date that it puts in front and to where it has spaces.
class OPS_TRANSFORMER_API ChatTemplate {
 public:
  /// The names there are: chatml, llama3, gemma, llama2, mistral.
  static std::vector<std::string_view> names();

  /// name: one of names(); empty: the one that tokenizer.chat_template is, and for a file without a template the one
  /// that its control tokens belong to, with a warning. `tokenizer` must outlive the object. Throws InvalidArgument for
  /// another name, and where none is given and none fits; InvalidFile where the vocabulary lacks the template's marks.
  explicit ChatTemplate(const Tokenizer& tokenizer, std::string_view name = {});
  ~ChatTemplate();
  ChatTemplate(const ChatTemplate&) = delete;
  ChatTemplate& operator=(const ChatTemplate&) = delete;

  std::string_view name() const noexcept;
  /// add_generation_prompt: the assistant's turn is opened at the end. Throws InvalidArgument for no messages, an empty
  /// role, and roles or an order of them that the template has no place for.
  ChatPrompt render(std::span<const ChatMessage> messages, bool add_generation_prompt = true) const;
  /// What was assumed, one sentence each; for the caller to show.
  const std::vector<std::string>& warnings() const noexcept { return warnings_; }

 private:
  void add(ChatPrompt& prompt, std::string_view part, std::string_view role = {}) const;

  const Tokenizer* tokenizer_;
  std::unique_ptr<ChatFormat> format_;
  std::vector<std::string> warnings_;
};

}  // namespace ops_transformer::llm
