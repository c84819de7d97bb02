// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <limits>
#include <string>

#include "cli/command.h"
#include "cli/generate_options.h"
#include "llm/chat_template.h"
#include "llm/engine.h"
#include "llm/tokenizer/utf8.h"

namespace ops_transformer::cli {

void SamplingOptions::add_to(CLI::App& command) {
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
}

std::vector<llm::TokenId> chat_prompt(const llm::Model& model, const std::string& system, const std::string& question) {
  const llm::ChatTemplate chat(model.tokenizer());
  for (const std::string& warning : chat.warnings()) fmt::print(stderr, "warning: {}\n", warning);
  std::vector<llm::ChatMessage> messages;
  if (!system.empty()) messages.push_back({"system", system});
  messages.push_back({"user", question});
  return chat.encode(messages);
}

namespace {

struct Options {
  ModelOptions model;
  SamplingOptions sampling;
  std::string system;
  std::int64_t context_len = 0;
};

void run(const Options& options) {
  Context context(options.model.context());
  const auto model = options.model.load(context);
  const std::int64_t context_len = options.context_len > 0 ? options.context_len : model->config().context_len;
  Profiling profiling(context, options.model);
  const bool terminal = isatty(STDIN_FILENO) != 0;
  const llm::ChatTemplate chat(model->tokenizer());
  for (const std::string& warning : chat.warnings()) fmt::print(stderr, "warning: {}\n", warning);
  if (terminal) fmt::print(stderr, "{}: an empty line or Ctrl-D ends the chat\n", llm::shown(model->config().name));

  KvPool pool = model->make_kv_pool(context_len);
  const SequenceId sequence = pool.add_sequence();
  std::vector<llm::ChatMessage> messages;
  std::vector<llm::TokenId> history;  // tokens of the turns so far; the cache holds the first pool.length of them
  if (!options.system.empty()) messages.push_back({"system", options.system});
  Json turns = Json::array();
  for (std::string line; (terminal ? print("> ") : void()), std::getline(std::cin, line) && !line.empty();) {
    messages.push_back({"user", line});
    // The conversation is encoded anew; only what the cache does not yet hold of it is read.
    std::vector<llm::TokenId> conversation = chat.encode(messages);
    const auto known = std::min({history.size(), std::size_t(pool.length(sequence)), conversation.size() - 1});
    const auto [differs, unused] =
        std::mismatch(conversation.begin(), conversation.begin() + std::ptrdiff_t(known), history.begin());
    pool.truncate(sequence, differs - conversation.begin());
    const llm::GenerateRequest request{
        .prompt = {differs, conversation.end()}, .options = options.sampling.generate_options(), .sequence = sequence};
    llm::Generation generation(context, *model, pool, {request}, {.context_len = context_len});
    while (!generation.done()) {
      for (const llm::TextEvent& event : generation.step()) {
        if (options.model.json) continue;
        print(event.text);
      }
    }
    if (!options.model.json) print("\n");
    const llm::GenerateResult& result = generation.result(0);
    messages.push_back({"assistant", result.text});
    history = std::move(conversation);
    history.insert(history.end(), result.tokens.begin(), result.tokens.end());
    turns.push_back({{"user", line}, {"assistant", result.text}, {"finish", llm::finish_reason_name(result.finish)}});
  }
  if (options.model.json) print_json({{"turns", turns}});
  profiling.report();
}

}  // namespace

void add_chat(CLI::App& program) {
  auto* command = program.add_subcommand("chat", "Talk with a model: one line a turn, the conversation is kept.");
  auto options = std::make_shared<Options>();
  options->model.add_to(*command);
  command->add_option("--system", options->system, "system message (default: the template's own)");
  command->add_option("--context", options->context_len, "longest conversation in tokens (default: the model's)")
      ->check(whole_number(std::int64_t{1}, kMostTokens));
  options->sampling.add_to(*command);
  command->callback([options] { run(*options); });
}

}  // namespace ops_transformer::cli
