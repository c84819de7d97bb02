// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/generate_options.h"
#include "llm/chat_template.h"
#include "llm/engine.h"

namespace ops_transformer::cli {
namespace {

struct Options {
  ModelOptions model;
  AnswerOptions answer;
  std::vector<std::string> prompts;
  std::string prompt_file;
  bool has_prompt_file = false;
  std::string system;
  bool chat = false;
  std::int64_t context_len = 0;
};

Json to_json(const llm::GenerateRequest& request, const llm::GenerateResult& result) {
  return {{"text", result.text},
          {"finish", llm::finish_reason_name(result.finish)},
          {"prompt_tokens", request.prompt.size()},
          {"tokens", result.tokens}};
}

void run(const Options& options) {
  std::vector<std::string> prompts = options.prompts;
  if (options.has_prompt_file) prompts.push_back(read_text(options.prompt_file));
  Context context(options.model.context());
  const auto model = options.model.load(context);
  Profiling profiling(context, options.model);
  const double loaded = seconds_since_start();

  const auto chat = options.chat ? chat_template(model->tokenizer(), options.answer) : nullptr;
  std::vector<llm::GenerateRequest> requests;
  for (const std::string& prompt : prompts) {
    llm::GenerateRequest request;
    if (chat) {
      std::vector<llm::ChatMessage> messages;
      if (!options.system.empty()) messages.push_back({"system", options.system});
      messages.push_back({"user", prompt});
      request.prompt = encode(model->tokenizer(), chat->render(messages));
    } else {
      std::size_t dropped = 0;
      request.prompt = model->tokenizer().encode(prompt, {.add_special = true, .dropped_bytes = &dropped});
      warn_of_dropped_bytes(dropped);
    }
    request.options = options.answer.generate_options();
    requests.push_back(std::move(request));
  }
  KvPool pool =
      model->make_kv_pool(llm::cache_tokens(*model, requests, options.context_len), std::int64_t(requests.size()));
  llm::Generation generation(context, *model, pool, requests, {.context_len = options.context_len});

  // One answer streams; several are printed when all are there.
  const bool stream = requests.size() == 1 && !options.model.json;
  double first_text = 0;
  while (!generation.done()) {
    for (const llm::TextEvent& event : generation.step()) {
      if (first_text == 0) first_text = seconds_since_start();
      if (stream) print(event.text);
    }
  }
  const llm::GenerateTiming& timing = generation.timing();
  const auto rate = [](std::int64_t count, double seconds) { return seconds > 0 ? double(count) / seconds : 0.0; };
  const double prefill = rate(timing.prefill_tokens, timing.prefill_seconds),
               decode = rate(timing.decode_tokens, timing.decode_seconds);
  if (options.model.json) {
    Json answers = Json::array();
    for (std::size_t i = 0; i < requests.size(); ++i) answers.push_back(to_json(requests[i], generation.result(i)));
    print_json({{"answers", answers},
                {"prefill_tokens", timing.prefill_tokens},
                {"prefill_tokens_per_second", prefill},
                {"decode_tokens", timing.decode_tokens},
                {"decode_tokens_per_second", decode},
                {"load_seconds", loaded},
                {"first_token_seconds", first_text},
                {"threads", context.num_threads()},
                {"peak_memory_bytes", peak_memory_bytes()}});
    return profiling.report();
  }
  if (stream) {
    print("\n");
  } else {
    for (std::size_t i = 0; i < requests.size(); ++i) {
      print(fmt::format("=== {}\n{}\n", prompts[i], generation.result(i).text));
    }
  }
  fmt::print(stderr,
             "\nprefill {} tokens, {:.0f} tokens/s; decode {} tokens, {:.0f} tokens/s; {} threads, peak memory {} MB\n",
             timing.prefill_tokens, prefill, timing.decode_tokens, decode, context.num_threads(),
             peak_memory_bytes() / 1000000);
  profiling.report();
}

}  // namespace

void add_generate(CLI::App& program) {
  auto* command = program.add_subcommand("generate", "Answer one prompt, streaming, or several in one batch.");
  auto options = std::make_shared<Options>();
  options->model.add_to(*command);
  auto* prompt = command->add_option("-p,--prompt", options->prompts, "text to continue; repeat for a batch");
  auto* file = command->add_option("-f,--prompt-file", options->prompt_file, "file with a prompt; - is standard input");
  auto* chat = command->add_flag("--chat", options->chat, "put the prompt into the model's chat template");
  command->add_option("--system", options->system, "system message, with --chat")->needs(chat);
  command->add_option("--context", options->context_len, "longest sequence (default: the model's)")
      ->check(whole_number(std::int64_t{1}, kMostTokens));
  options->answer.add_to(*command);
  options->answer.template_option()->needs(chat);
  command->callback([options, prompt, file] {
    if (prompt->count() == 0 && file->count() == 0) throw CLI::RequiredError("--prompt or --prompt-file");
    options->has_prompt_file = file->count() > 0;
    run(*options);
  });
}

}  // namespace ops_transformer::cli
