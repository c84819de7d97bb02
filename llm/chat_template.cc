// SPDX-License-Identifier: Apache-2.0
#include "llm/chat_template.h"

#include <fmt/format.h>

#include "ops_transformer/base/error.h"

namespace ops_transformer::llm {
namespace {

constexpr std::string_view kStart = "<|im_start|>";
constexpr std::string_view kEnd = "<|im_end|>";

TokenId mark(const Tokenizer& tokenizer, std::string_view name) {
  const auto id = tokenizer.find_token(name);
  if (!id || !tokenizer.is_special(*id)) {
    throw InvalidFile(fmt::format("the vocabulary has no control token '{}', which the ChatML template needs", name));
  }
  return *id;
}

/// The literal system message that a template puts in front of conversations without one: what stands between
/// `<|im_start|>system` and `<|im_end|>` in a string constant, after a test that the first message is not a system
/// message. Newlines in the constant are written out or escaped.
std::string default_system_message(std::string_view text) {
  constexpr std::string_view kOpen = "<|im_start|>system";
  for (std::size_t at = text.find(kOpen); at != std::string_view::npos; at = text.find(kOpen, at + 1)) {
    std::string_view rest = text.substr(at + kOpen.size());
    if (rest.starts_with("\\n")) {
      rest.remove_prefix(2);
    } else if (rest.starts_with('\n')) {
      rest.remove_prefix(1);
    } else {
      continue;
    }
    const std::string_view message = rest.substr(0, rest.find(kEnd));
    // A quote before the end mark: the message is an expression, not a constant.
    if (message.size() == rest.size() || message.find_first_of("'\"{") != std::string_view::npos) continue;
    std::string out;
    for (std::size_t i = 0; i < message.size(); ++i) {
      const bool newline = message.substr(i).starts_with("\\n");
      out += newline ? '\n' : message[i];
      i += newline;
    }
    return out;
  }
  return {};
}

}  // namespace

ChatTemplate::ChatTemplate(const Tokenizer& tokenizer)
    : tokenizer_(&tokenizer), start_(mark(tokenizer, kStart)), end_(mark(tokenizer, kEnd)) {
  const auto& text = tokenizer.chat_template();
  if (!text) {
    warnings_.emplace_back("the file has no chat template: messages are written as ChatML");
  } else if (text->find(kStart) == std::string::npos) {
    warnings_.emplace_back("the file's chat template is not ChatML, which is used instead");
  } else {
    default_system_message_ = llm::default_system_message(*text);
  }
}

template <class OnMark, class OnText>
void ChatTemplate::walk(std::span<const ChatMessage> messages, bool add_generation_prompt, OnMark on_mark,
                        OnText on_text) const {
  if (messages.empty()) throw InvalidArgument("messages: 0 messages, at least 1 is needed");
  const auto turn = [&](std::string_view role, std::string_view content) {
    on_mark(start_);
    on_text(fmt::format("{}\n{}", role, content));
    on_mark(end_);
    on_text("\n");
  };
  for (std::size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].role.empty()) throw InvalidArgument(fmt::format("messages: message {} has an empty role", i));
  }
  if (messages.front().role != "system" && !default_system_message_.empty()) turn("system", default_system_message_);
  for (const ChatMessage& message : messages) turn(message.role, message.content);
  if (add_generation_prompt) {
    on_mark(start_);
    on_text("assistant\n");
  }
}

std::vector<TokenId> ChatTemplate::encode(std::span<const ChatMessage> messages, bool add_generation_prompt) const {
  std::vector<TokenId> ids;
  // A model that asks for BOS gets one, and only one where BOS is the turn mark itself.
  if (tokenizer_->adds_bos() && tokenizer_->bos() != start_) ids.push_back(*tokenizer_->bos());
  walk(
      messages, add_generation_prompt, [&](TokenId id) { ids.push_back(id); },
      [&](std::string_view text) {
        const auto text_ids = tokenizer_->encode(text);
        ids.insert(ids.end(), text_ids.begin(), text_ids.end());
      });
  return ids;
}

std::string ChatTemplate::render(std::span<const ChatMessage> messages, bool add_generation_prompt) const {
  std::string out;
  if (tokenizer_->adds_bos() && tokenizer_->bos() != start_) out += tokenizer_->token_bytes(*tokenizer_->bos());
  walk(
      messages, add_generation_prompt, [&](TokenId id) { out += tokenizer_->token_bytes(id); },
      [&](std::string_view text) { out += text; });
  return out;
}

}  // namespace ops_transformer::llm
