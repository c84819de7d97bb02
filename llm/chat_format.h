// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ops_transformer::llm {

/// What stands around a content. {role}, {bos} and {eos} stand for themselves.
struct ChatTurn {
  std::string open, close;
};

/// A chat template as data.
struct ChatFormat {
  enum class System : std::uint8_t { own_turn, in_first_turn, in_last_turn, refused };
  enum class Trim : std::uint8_t { none, content, turn };  // turn: with the system message that it begins with

  std::string_view name;
  std::string_view mark;                 // found in the text of such templates
  std::vector<std::string_view> tokens;  // control tokens that it can't do without
  std::string begin;
  ChatTurn system, user, assistant;
  std::string answer;     // opens the assistant's turn
  bool any_role = false;  // else user and assistant alternate; such roles have the user's turn
  System system_place = System::own_turn;
  Trim trim_user = Trim::none;
  bool trim_assistant = false;
  std::optional<std::string> default_system{};  // of conversations that bring none
};

/// All of them; the first whose mark a text holds is its.
std::span<const ChatFormat> chat_formats();
/// The format as one template of its family, whose text this is, has it.
ChatFormat adapted_to(ChatFormat format, std::string_view text);

}  // namespace ops_transformer::llm
