// SPDX-License-Identifier: Apache-2.0
#include "cli/generate_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <limits>

#include "cli/command.h"

namespace ops_transformer::cli {

void AnswerOptions::add_to(CLI::App& command) {
  llm::SamplerOptions& sampler = options_.sampler;
  command.add_option("-n,--max-tokens", options_.max_tokens, "longest answer")
      ->capture_default_str()
      ->check(whole_number(std::int64_t{1}, std::numeric_limits<std::int64_t>::max()));
  command.add_option("--temperature", sampler.temperature, "0: always the most likely token")->capture_default_str();
  command.add_option("--top-k", sampler.top_k, "keep the k most likely tokens; 0: all")->capture_default_str();
  command.add_option("--top-p", sampler.top_p, "keep the most likely tokens that together reach p")
      ->capture_default_str();
  command.add_option("--min-p", sampler.min_p, "keep tokens at least this likely, relative to the likeliest")
      ->capture_default_str();
  command.add_option("--repetition-penalty", sampler.repetition_penalty, "above 1: seen tokens become less likely")
      ->capture_default_str();
  command.add_option("--repetition-window", sampler.repetition_window, "last tokens that count as seen; -1: all")
      ->capture_default_str();
  command.add_option("--seed", sampler.seed, "seed of the draws")
      ->capture_default_str()
      ->check(whole_number(std::uint64_t{0}, std::numeric_limits<std::uint64_t>::max()));
  command.add_option("--stop", options_.stop, "text that ends the answer; may be repeated");
  command.add_flag("--ignore-eos", options_.ignore_eos, "go on past end-of-text tokens");
  template_option_ = command
                         .add_option("--template", template_,
                                     fmt::format("chat template: {} (default: the file's own)",
                                                 fmt::join(llm::ChatTemplate::names(), ", ")))
                         ->check(CLI::IsMember(llm::ChatTemplate::names()));
}

std::unique_ptr<llm::ChatTemplate> chat_template(const llm::Tokenizer& tokenizer, const AnswerOptions& options) {
  auto chat = std::make_unique<llm::ChatTemplate>(tokenizer, options.template_name());
  for (const std::string& warning : chat->warnings()) fmt::print(stderr, "warning: {}\n", warning);
  return chat;
}

std::vector<llm::TokenId> encode(const llm::Tokenizer& tokenizer, const llm::ChatPrompt& prompt) {
  std::size_t dropped = 0;
  auto ids = llm::encode_prompt(tokenizer, prompt, &dropped);
  warn_of_dropped_bytes(dropped);
  return ids;
}

void warn_of_dropped_bytes(std::size_t dropped) {
  if (dropped > 0) {
    fmt::print(stderr, "warning: {} bytes of the prompt are not in the vocabulary and were left out\n", dropped);
  }
}

}  // namespace ops_transformer::cli
