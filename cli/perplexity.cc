// SPDX-License-Identifier: Apache-2.0
#include "llm/perplexity.h"

#include <fmt/format.h>

#include <limits>

#include "cli/command.h"
#include "cli/progress.h"

namespace ops_transformer::cli {
namespace {

struct Options {
  ModelOptions model;
  std::string file;
  llm::PerplexityOptions perplexity;
};

void run(Options options) {
  const std::string text = read_text(options.file);
  Context context(options.model.context());
  const auto model = options.model.load(context);
  Profiling profiling(context, options.model);
  std::size_t dropped = 0;
  const auto tokens = model->tokenizer().encode(text, {.dropped_bytes = &dropped});
  if (dropped > 0) {
    fmt::print(stderr, "warning: {} bytes of the text are not in the vocabulary and were left out\n", dropped);
  }
  ProgressBar bar("perplexity");
  options.perplexity.progress = [&bar](std::int64_t done, std::int64_t all, double so_far) {
    bar.update(double(done) / double(all), fmt::format("{:.4f}", so_far));
  };
  const auto [perplexity, scored] = llm::perplexity(context, *model, tokens, options.perplexity);
  if (options.model.json) {
    print_json({{"perplexity", perplexity}, {"tokens", scored}});
  } else {
    print(fmt::format("perplexity {:.4f} over {} tokens\n", perplexity, scored));
  }
  profiling.report();
}

}  // namespace

void add_perplexity(CLI::App& program) {
  auto* command = program.add_subcommand("perplexity", "How well the model predicts a text.");
  auto options = std::make_shared<Options>();
  options->model.add_to(*command);
  command->add_option("-f,--file", options->file, "UTF-8 text; - is standard input")->required();
  command->add_option("--context", options->perplexity.context_len, "tokens of a window")
      ->capture_default_str()
      ->check(whole_number(std::int64_t{4}, kMostTokens));
  command->add_option("--chunks", options->perplexity.max_windows, "windows to score (default: all)")
      ->check(whole_number(std::int64_t{1}, std::numeric_limits<std::int64_t>::max()));
  command->callback([options] { run(*options); });
}

}  // namespace ops_transformer::cli
