// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "llm/chat_template.h"
#include "llm/engine.h"

namespace ops_transformer::cli {

/// How an answer is written, sampled and where it ends: the options that `generate` and `chat` share.
class AnswerOptions {
 public:
  void add_to(CLI::App& command);
  const llm::GenerateOptions& generate_options() const { return options_; }
  /// --template: a name of the built-in ones; empty: the file's own.
  const std::string& template_name() const { return template_; }
  CLI::Option* template_option() const { return template_option_; }

 private:
  llm::GenerateOptions options_{.max_tokens = 256};
  std::string template_;
  CLI::Option* template_option_ = nullptr;
};

/// The template that these options and the model ask for; its warnings go to stderr.
std::unique_ptr<llm::ChatTemplate> chat_template(const llm::Tokenizer& tokenizer, const AnswerOptions& options);
/// The prompt's tokens; bytes that no token stands for are warned of on stderr.
std::vector<llm::TokenId> encode(const llm::Tokenizer& tokenizer, const llm::ChatPrompt& prompt);
void warn_of_dropped_bytes(std::size_t dropped);

}  // namespace ops_transformer::cli
