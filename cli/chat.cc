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

namespace {

struct Options {
  ModelOptions model;
  AnswerOptions answer;
  std::string system;
  std::int64_t context_len = 0;
};

void run(const Options& options) {
  Context context(options.model.context());
  const auto model = options.model.load(context);
  const std::int64_t context_len = options.context_len > 0 ? options.context_len : model->config().context_len;
  Profiling profiling(context, options.model);
  const bool terminal = isatty(STDIN_FILENO) != 0;
  const auto chat = chat_template(model->tokenizer(), options.answer);
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
    std::vector<llm::TokenId> conversation = encode(model->tokenizer(), chat->render(messages));
    const auto known = std::min({history.size(), std::size_t(pool.length(sequence)), conversation.size() - 1});
    const auto [differs, unused] =
        std::mismatch(conversation.begin(), conversation.begin() + std::ptrdiff_t(known), history.begin());
    pool.truncate(sequence, differs - conversation.begin());
    const llm::GenerateRequest request{
        .prompt = {differs, conversation.end()}, .options = options.answer.generate_options(), .sequence = sequence};
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
  options->answer.add_to(*command);
  command->callback([options] { run(*options); });
}

}  // namespace ops_transformer::cli
