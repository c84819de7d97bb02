// SPDX-License-Identifier: Apache-2.0
#include "llm/chat_format.h"

#include <fmt/format.h>

#include <array>
#include <ctime>

namespace ops_transformer::llm {
namespace {

/// The literal system message that a ChatML template puts in front of conversations without one: what stands between
/// `<|im_start|>system` and `<|im_end|>` in a string constant. Newlines in the constant are written out or escaped.
std::optional<std::string> chatml_default_system(std::string_view text) {
  constexpr std::string_view kOpen = "<|im_start|>system", kClose = "<|im_end|>";
  for (std::size_t at = text.find(kOpen); at != std::string_view::npos; at = text.find(kOpen, at + 1)) {
    std::string_view rest = text.substr(at + kOpen.size());
    if (rest.starts_with("\\n")) {
      rest.remove_prefix(2);
    } else if (rest.starts_with('\n')) {
      rest.remove_prefix(1);
    } else {
      continue;
    }
    const std::string_view message = rest.substr(0, rest.find(kClose));
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
  return std::nullopt;
}

std::string today() {
  constexpr std::array kMonths = {"Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  return fmt::format("{:02} {} {}", local.tm_mday, kMonths.at(std::size_t(local.tm_mon)), local.tm_year + 1900);
}

}  // namespace

std::span<const ChatFormat> chat_formats() {
  using enum ChatFormat::System;
  using enum ChatFormat::Trim;
  static const std::vector<ChatFormat> formats = {
      {.name = "chatml",
       .mark = "<|im_start|>",
       .tokens = {"<|im_start|>", "<|im_end|>"},
       .begin = "",
       .system = {"<|im_start|>system\n", "<|im_end|>\n"},
       .user = {"<|im_start|>{role}\n", "<|im_end|>\n"},
       .assistant = {"<|im_start|>assistant\n", "<|im_end|>\n"},
       .answer = "<|im_start|>assistant\n",
       .any_role = true},
      {.name = "llama3",
       .mark = "<|start_header_id|>",
       .tokens = {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"},
       .begin = "{bos}",
       .system = {"<|start_header_id|>system<|end_header_id|>\n\n", "<|eot_id|>"},
       .user = {"<|start_header_id|>{role}<|end_header_id|>\n\n", "<|eot_id|>"},
       .assistant = {"<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>"},
       .answer = "<|start_header_id|>assistant<|end_header_id|>\n\n",
       .any_role = true,
       .trim_user = content,
       .trim_assistant = true},
      {.name = "gemma",
       .mark = "<start_of_turn>",
       .tokens = {"<start_of_turn>", "<end_of_turn>"},
       .begin = "{bos}",
       .system = {"", "\n\n"},
       .user = {"<start_of_turn>user\n", "<end_of_turn>\n"},
       .assistant = {"<start_of_turn>model\n", "<end_of_turn>\n"},
       .answer = "<start_of_turn>model\n",
       .system_place = in_first_turn,
       .trim_user = content,
       .trim_assistant = true},
      {.name = "llama2",
       .mark = "<<SYS>>",
       .tokens = {},
       .begin = "",
       .system = {"<<SYS>>\n", "\n<</SYS>>\n\n"},
       .user = {"{bos}[INST] ", " [/INST]"},
       .assistant = {" ", " {eos}"},
       .answer = "",
       .system_place = in_first_turn,
       .trim_user = turn,
       .trim_assistant = true},
      {.name = "mistral",
       .mark = "[INST]",
       .tokens = {},
       .begin = "{bos}",
       .system = {"", "\n\n"},
       .user = {"[INST] ", "[/INST]"},
       .assistant = {" ", "{eos}"},
       .answer = "",
       .system_place = in_last_turn,
       .trim_assistant = true},
  };
  return formats;
}

ChatFormat adapted_to(ChatFormat format, std::string_view text) {
  // Templates quote with either quote.
  std::string plain;
  for (const char c : text) plain += c == '"' ? '\'' : c;
  const auto has = [&](std::string_view part) { return plain.find(part) != std::string::npos; };
  if (format.name == "chatml") {
    format.default_system = chatml_default_system(text);
  } else if (format.name == "llama3" && has("Cutting Knowledge Date: December 2023")) {
    format.system.open += fmt::format("Cutting Knowledge Date: December 2023\nToday Date: {}\n\n",
                                      has("strftime_now") ? today() : "26 Jul 2024");
    format.default_system = "";
  } else if (format.name == "gemma" && has("System role not supported")) {
    format.system_place = ChatFormat::System::refused;
  } else if (format.name == "mistral") {
    if (has("[SYSTEM_PROMPT]")) {
      const bool spaced = has("[SYSTEM_PROMPT] ");
      format.system = {spaced ? "[SYSTEM_PROMPT] " : "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"};
      format.system_place = ChatFormat::System::own_turn;
    } else if (has("loop.first and system_message")) {
      format.system_place = ChatFormat::System::in_first_turn;
    } else if (!has("system_message")) {
      format.system_place = ChatFormat::System::refused;
    }
    format.user = {has("' [INST] ") ? " [INST] "
                   : has("[INST] ") ? "[INST] "
                                    : "[INST]",
                   has(" [/INST]") ? " [/INST]" : "[/INST]"};
    format.assistant = {has("' ' + message['content']") ? " " : "", has("eos_token + ' '") ? "{eos} " : "{eos}"};
    format.trim_assistant = has("message['content']|trim + eos") || has("message['content'] | trim + eos");
  }
  return format;
}

}  // namespace ops_transformer::llm
