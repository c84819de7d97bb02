// SPDX-License-Identifier: Apache-2.0
#include "llm/chat_template.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "llm/chat_format.h"
#include "ops_transformer/base/error.h"

namespace ops_transformer::llm {
namespace {

// What Jinja's trim, Python's str.strip, takes for space.
constexpr std::array<std::string_view, 29> kSpaces = {
    "\t",           "\n",           "\v",           "\f",           "\r",
    "\x1c",         "\x1d",         "\x1e",         "\x1f",         " ",
    "\xc2\x85",     "\xc2\xa0",     "\xe1\x9a\x80", "\xe2\x80\x80", "\xe2\x80\x81",
    "\xe2\x80\x82", "\xe2\x80\x83", "\xe2\x80\x84", "\xe2\x80\x85", "\xe2\x80\x86",
    "\xe2\x80\x87", "\xe2\x80\x88", "\xe2\x80\x89", "\xe2\x80\x8a", "\xe2\x80\xa8",
    "\xe2\x80\xa9", "\xe2\x80\xaf", "\xe2\x81\x9f", "\xe3\x80\x80"};

std::string_view trim_end(std::string_view text) {
  const auto space = [&] {
    return std::ranges::find_if(kSpaces, [&](std::string_view s) { return text.ends_with(s); });
  };
  for (auto found = space(); found != kSpaces.end(); found = space()) text.remove_suffix(found->size());
  return text;
}

std::string_view trim_begin(std::string_view text) {
  const auto space = [&] {
    return std::ranges::find_if(kSpaces, [&](std::string_view s) { return text.starts_with(s); });
  };
  for (auto found = space(); found != kSpaces.end(); found = space()) text.remove_prefix(found->size());
  return text;
}

std::string_view trim(std::string_view text) { return trim_begin(trim_end(text)); }

std::string missing_token(const Tokenizer& tokenizer, const ChatFormat& format) {
  for (const std::string_view name : format.tokens) {
    const auto id = tokenizer.find_token(name);
    if (!id || !tokenizer.is_special(*id)) return std::string(name);
  }
  return {};
}

const ChatFormat* find_format(const Tokenizer& tokenizer, std::vector<std::string>& warnings) {
  const auto formats = chat_formats();
  if (const auto& text = tokenizer.chat_template()) {
    const auto found = std::ranges::find_if(
        formats, [&](const ChatFormat& format) { return text->find(format.mark) != std::string::npos; });
    return found == formats.end() ? nullptr : &*found;
  }
  for (const ChatFormat& format : formats) {
    if (format.tokens.empty() || !missing_token(tokenizer, format).empty()) continue;
    warnings.push_back(fmt::format(
        "the file has no chat template: messages are written as {}, which its control tokens belong to", format.name));
    return &format;
  }
  return nullptr;
}

// Throws where user and assistant don't alternate, beginning with the user.
void check_order(std::span<const ChatMessage> messages, std::string_view format) {
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const std::string_view wanted = i % 2 == 0 ? "user" : "assistant";
    if (messages[i].role != wanted) {
      throw InvalidArgument(
          fmt::format("messages: message {} after the system message has the role '{}', must be '{}': in {} user and "
                      "assistant take turns",
                      i, messages[i].role.substr(0, 60), wanted, format));
    }
  }
}

}  // namespace

std::vector<TokenId> encode_prompt(const Tokenizer& tokenizer, const ChatPrompt& prompt, std::size_t* dropped_bytes) {
  auto ids =
      tokenizer.encode(prompt.text, {.parse_special = true, .literal = prompt.literal, .dropped_bytes = dropped_bytes});
  if (tokenizer.adds_bos() && (ids.empty() || ids.front() != *tokenizer.bos())) {
    ids.insert(ids.begin(), *tokenizer.bos());
  }
  return ids;
}

std::vector<std::string_view> ChatTemplate::names() {
  std::vector<std::string_view> names;
  for (const ChatFormat& format : chat_formats()) names.push_back(format.name);
  return names;
}

ChatTemplate::ChatTemplate(const Tokenizer& tokenizer, std::string_view name) : tokenizer_(&tokenizer) {
  const auto formats = chat_formats();
  const auto named = std::ranges::find(formats, name, &ChatFormat::name);
  if (!name.empty() && named == formats.end()) {
    throw InvalidArgument(
        fmt::format("template is '{}', must be one of {}", name.substr(0, 60), fmt::join(names(), ", ")));
  }
  const ChatFormat* format = name.empty() ? find_format(tokenizer, warnings_) : &*named;
  if (!format) {
    throw InvalidArgument(fmt::format(
        "template: the file {}; choose a built-in one by its name: {}",
        tokenizer.chat_template() ? "has a chat template that is none of the built-in ones" : "has no chat template",
        fmt::join(names(), ", ")));
  }
  if (const std::string missing = missing_token(tokenizer, *format); !missing.empty()) {
    throw InvalidFile(
        fmt::format("the vocabulary has no control token '{}', which the {} template needs", missing, format->name));
  }
  const auto& text = tokenizer.chat_template();
  const bool fits = text && text->find(format->mark) != std::string::npos;
  format_ = std::make_unique<ChatFormat>(fits ? adapted_to(*format, *text) : *format);
  if (fits && format->name == "mistral" && text->find("default_system_message") != std::string::npos) {
    warnings_.emplace_back(
        "the file's chat template has a system message of its own for conversations without one, which is left out");
  }
}

ChatTemplate::~ChatTemplate() = default;

std::string_view ChatTemplate::name() const noexcept { return format_->name; }

void ChatTemplate::add(ChatPrompt& prompt, std::string_view part, std::string_view role) const {
  const auto token = [&](std::optional<TokenId> id) {
    if (id) prompt.add_template(tokenizer_->token_bytes(*id));
  };
  while (!part.empty()) {
    const std::size_t open = std::min(part.find('{'), part.size());
    prompt.add_template(part.substr(0, open));
    part.remove_prefix(open);
    if (part.empty()) return;
    const std::size_t len = part.find('}') + 1;
    const std::string_view name = part.substr(1, len - 2);
    if (name == "role") prompt.add_literal(role);
    if (name == "bos") token(tokenizer_->bos());
    if (name == "eos") token(tokenizer_->eos());
    part.remove_prefix(len);
  }
}

ChatPrompt ChatTemplate::render(std::span<const ChatMessage> messages, bool add_generation_prompt) const {
  using System = ChatFormat::System;
  using Trim = ChatFormat::Trim;
  const ChatFormat& format = *format_;
  if (messages.empty()) throw InvalidArgument("messages: 0 messages, at least 1 is needed");
  for (std::size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].role.empty()) throw InvalidArgument(fmt::format("messages: message {} has an empty role", i));
  }
  std::optional<std::string> system = format.default_system;
  if (messages.front().role == "system") {
    if (format.system_place == System::refused) {
      throw InvalidArgument("messages: this chat template has no place for a system message");
    }
    system = messages.front().content;
    messages = messages.subspan(1);
  }
  if (!format.any_role) check_order(messages, format.name);
  if (messages.empty() && format.system_place != System::own_turn) {
    throw InvalidArgument("messages: a system message alone, which this chat template puts into a user's turn");
  }

  ChatPrompt prompt;
  const auto add_system = [&] {
    add(prompt, format.system.open);
    prompt.add_literal(format.any_role && format.trim_user == Trim::content ? trim(*system) : *system);
    add(prompt, format.system.close);
  };
  add(prompt, format.begin);
  if (system && format.system_place == System::own_turn) add_system();
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const auto& [role, content] = messages[i];
    if (role == "assistant") {
      add(prompt, format.assistant.open);
      prompt.add_literal(format.trim_assistant ? trim(content) : content);
      add(prompt, format.assistant.close);
      continue;
    }
    const bool with_system = system && ((format.system_place == System::in_first_turn && i == 0) ||
                                        (format.system_place == System::in_last_turn && i + 1 == messages.size()));
    add(prompt, format.user.open, role);
    if (with_system) add_system();
    prompt.add_literal(format.trim_user == Trim::none                  ? content
                       : with_system && format.trim_user == Trim::turn ? trim_end(content)
                                                                       : trim(content));
    add(prompt, format.user.close);
  }
  if (add_generation_prompt) add(prompt, format.answer);
  return prompt;
}

}  // namespace ops_transformer::llm
