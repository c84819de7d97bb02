// SPDX-License-Identifier: Apache-2.0
#include "llm/chat_template.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <utility>
#include <vector>

#include "python/bindings.h"
#include "python/text.h"

namespace ops_transformer::python {
namespace {

namespace nb = nanobind;
using namespace nb::literals;
using llm::ChatPrompt;
using llm::ChatTemplate;

ChatPrompt prompt_of_parts(const std::vector<std::pair<Text, bool>>& parts) {
  ChatPrompt prompt;
  for (const auto& [text, is_literal] : parts) {
    if (is_literal) {
      prompt.add_literal(text.bytes());
    } else {
      prompt.add_template(text.bytes());
    }
  }
  return prompt;
}

std::vector<llm::ChatMessage> to_messages(const std::vector<std::pair<Text, Text>>& messages) {
  std::vector<llm::ChatMessage> turns;
  for (const auto& [role, content] : messages) turns.push_back({role.bytes(), content.bytes()});
  return turns;
}

}  // namespace

void bind_chat_template(nb::module_& module) {
  nb::class_<ChatPrompt>(module, "ChatPrompt", "A conversation as text that knows what its messages brought.")
      .def_static("of_parts", &prompt_of_parts, "parts"_a,
                  "From (text, whether a message brought it) one after another.")
      .def_prop_ro("text", [](const ChatPrompt& self) { return to_str(self.text); })
      .def(
          "encode",
          [](const ChatPrompt& self, const llm::Tokenizer& tokenizer) {
            const nb::gil_scoped_release released;
            std::size_t dropped = 0;
            auto ids = llm::encode_prompt(tokenizer, self, &dropped);
            return std::pair(std::move(ids), dropped);
          },
          "tokenizer"_a, "Token ids, and how many bytes no token stands for.");
  nb::class_<ChatTemplate>(module, "BuiltInTemplate", "A chat template that is built in.")
      .def(nb::init<const llm::Tokenizer&, std::string_view>(), nb::keep_alive<1, 2>(), "tokenizer"_a, "name"_a = "")
      .def_static("names", &ChatTemplate::names)
      .def_prop_ro("name", &ChatTemplate::name)
      .def_prop_ro("warnings", &ChatTemplate::warnings)
      .def(
          "render",
          [](const ChatTemplate& self, const std::vector<std::pair<Text, Text>>& messages, bool add_generation_prompt) {
            return self.render(to_messages(messages), add_generation_prompt);
          },
          "messages"_a, "add_generation_prompt"_a = true, "The prompt that (role, content) messages make.");
}

}  // namespace ops_transformer::python
