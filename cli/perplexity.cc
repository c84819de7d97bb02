// SPDX-License-Identifier: Apache-2.0
#include "llm/perplexity.h"

#include <fmt/format.h>

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
  const Profiling profiling(context, options.model);
  const auto tokens = model->tokenizer().encode(text);
  ProgressBar bar("perplexity");
  options.perplexity.progress = [&bar](std::int64_t done, std::int64_t all, double so_far) {
    bar.update(double(done) / double(all), fmt::format("{:.4f}", so_far));
  };
  const auto [perplexity, scored] = llm::perplexity(context, *model, tokens, options.perplexity);
  if (options.model.json) {
    print_json({{"perplexity", perplexity}, {"tokens", scored}});
  } else {
    fmt::print("perplexity {:.4f} over {} tokens\n", perplexity, scored);
  }
}

}  // namespace

void add_perplexity(CLI::App& program) {
  auto* command = program.add_subcommand("perplexity", "How well the model predicts a text.");
  auto options = std::make_shared<Options>();
  options->model.add_to(*command);
  command->add_option("-f,--file", options->file, "UTF-8 text; - is standard input")->required();
  command->add_option("--context", options->perplexity.context_len, "tokens of a window")->capture_default_str();
  command->add_option("--chunks", options->perplexity.max_windows, "windows to score (default: all)")
      ->check(CLI::PositiveNumber);
  command->callback([options] { run(*options); });
}

}  // namespace ops_transformer::cli
