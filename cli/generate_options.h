// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "llm/engine.h"
#include "llm/model.h"

namespace ops_transformer::cli {

/// How an answer is sampled and where it ends: the options that `generate` and `chat` share.
class SamplingOptions {
 public:
  void add_to(CLI::App& command);
  const llm::GenerateOptions& generate_options() const { return options_; }

 private:
  llm::GenerateOptions options_{.max_tokens = 256};
};

/// A conversation's opening in the model's chat template: system message (empty: the template's own) and first
/// question.
std::vector<llm::TokenId> chat_prompt(const llm::Model& model, const std::string& system, const std::string& question);

}  // namespace ops_transformer::cli
