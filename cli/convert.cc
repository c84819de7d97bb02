// SPDX-License-Identifier: Apache-2.0
#include "llm/formats/convert.h"

#include <fmt/format.h>

#include <csignal>

#include "cli/command.h"
#include "cli/progress.h"

namespace ops_transformer::cli {
namespace {

struct Options {
  std::string model, output, dtype;
  bool force = false, json = false;
};

volatile std::sig_atomic_t interrupted = 0;

struct Interrupted {};

DType dtype_named(const std::string& name) {
  for (int i = 0; i < kNumDTypes; ++i) {
    if (dtype_name(DType(i)) == name) return DType(i);
  }
  throw InvalidArgument(
      fmt::format("dtype: '{}' is unknown; f32, f16, bf16, q8_0, q4_0 and q4_1 can be written", name));
}

void run(const Options& options) {
  const llm::ModelFile model = llm::ModelFile::open(options.model);
  llm::ConvertOptions convert{.overwrite = options.force};
  if (!options.dtype.empty()) convert.dtype = dtype_named(options.dtype);
  ProgressBar bar("converting");
  convert.progress = [&bar](std::size_t done, std::size_t all) {
    if (interrupted) throw Interrupted();
    bar.update(double(done) / double(all));
  };
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) std::signal(signal, [](int number) { interrupted = number; });
  try {
    const llm::ConvertResult result = llm::convert_to_gguf(model, options.output, convert);
    if (options.json) {
      print_json({{"output", options.output},
                  {"bytes", result.bytes},
                  {"tensors", result.num_tensors},
                  {"dtype", options.dtype.empty() ? Json() : Json(options.dtype)},
                  {"f16_instead", result.num_fallbacks},
                  {"seconds", seconds_since_start()}});
    } else {
      print(fmt::format("{}: {} bytes, {} tensors\n", options.output, result.bytes, result.num_tensors));
    }
    if (result.num_fallbacks > 0) {
      fmt::print(stderr, "warning: {} matrices became f16, as their rows are no multiple of {}'s block\n",
                 result.num_fallbacks, options.dtype);
    }
  } catch (const Interrupted&) {
    std::signal(interrupted, SIG_DFL);
    std::raise(interrupted);
  }
}

}  // namespace

void add_convert(CLI::App& program) {
  auto* command = program.add_subcommand("convert", "Writes a folder of safetensors, or a GGUF file, as GGUF.");
  auto options = std::make_shared<Options>();
  command->add_option("model", options->model, "folder of safetensors, or GGUF file")
      ->required()
      ->check(CLI::ExistingPath);
  command->add_option("-o,--output", options->output, "GGUF file to write")->required();
  command->add_option("--dtype", options->dtype,
                      "type of the matrices: f32, f16, bf16, q8_0, q4_0 or q4_1 (default: as they are)");
  command->add_flag("--force", options->force, "overwrite the output");
  command->add_flag("--json", options->json, "print one JSON object on standard output");
  command->callback([options] { run(*options); });
}

}  // namespace ops_transformer::cli
