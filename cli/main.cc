// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <sys/resource.h>

#include <chrono>
#include <cstdio>
#include <exception>
#include <fstream>
#include <iostream>
#include <iterator>

#include "cli/command.h"
#include "cli/progress.h"
#include "ops_transformer/base/error.h"

namespace ops_transformer::cli {
namespace {

const auto kStart = std::chrono::steady_clock::now();

int report(const char* message, ExitCode code) {
  fmt::print(stderr, "ops-transformer: {}\n", message);
  return code;
}

int run(int argc, char** argv) {
  CLI::App program("Runs language models on fused CPU operators.", "ops-transformer");
  program.set_version_flag("--version", OPS_TRANSFORMER_VERSION);
  program.require_subcommand(1);
  program.footer("Exit codes: 0 success, 1 failure, 2 wrong usage or argument, 3 unusable file.");
  add_generate(program);
  add_chat(program);
  add_inspect(program);
  add_bench(program);
  add_perplexity(program);
  add_explain(program);
  try {
    program.parse(argc, argv);
    return kOk;
  } catch (const CLI::ParseError& error) {
    return program.exit(error) == 0 ? kOk : kUsage;
  } catch (const InvalidArgument& error) {
    return report(error.what(), kUsage);
  } catch (const InvalidFile& error) {
    return report(error.what(), kBadFile);
  } catch (const std::bad_alloc&) {
    return report("out of memory", kFailed);
  } catch (const std::exception& error) {
    return report(error.what(), kFailed);
  }
}

}  // namespace

void ModelOptions::add_to(CLI::App& command, bool needs_model) {
  auto* path = command.add_option("-m,--model", model, "GGUF file")->check(CLI::ExistingFile);
  if (needs_model) path->required();
  command.add_option("-t,--threads", threads, "threads to use (default: the CPUs this process may use)");
  command.add_flag("--json", json, "print one JSON object on standard output");
  command.add_flag("--exact", exact, "f32 arithmetic on dequantised weights and an f32 cache");
  command.add_option("--profile", profile,
                     "write a Chrome trace of every operator call to this file, and print totals");
  command.add_flag("--deterministic", deterministic, "the same bits for any thread count, chunking and batch");
}

ContextOptions ModelOptions::context() const { return {.num_threads = threads, .deterministic = deterministic}; }

std::unique_ptr<llm::Model> ModelOptions::load(Context& context) const {
  ProgressBar bar("loading");
  llm::LoadOptions options;
  options.arithmetic = exact ? Arithmetic::exact : Arithmetic::fast;
  options.progress = [&bar](std::size_t done, std::size_t all) { bar.update(double(done) / double(all)); };
  return llm::load_model(context, model, options);
}

Profiling::Profiling(Context& context, const ModelOptions& options) : context_(context), path_(options.profile) {
  if (path_.empty()) return;
  profiler_ = std::make_unique<Profiler>();
  context_.set_profiler(profiler_.get());
}

Profiling::~Profiling() {
  if (!profiler_) return;
  context_.set_profiler(nullptr);
  fmt::print(stderr, "\n{}", profiler_->table());
  try {
    profiler_->write_trace(path_);
  } catch (const std::exception& error) {
    fmt::print(stderr, "ops-transformer: {}\n", error.what());
  }
}

void print_json(const Json& json) { std::cout << json.dump(2, ' ', false, Json::error_handler_t::replace) << '\n'; }

std::string read_text(const std::string& path) {
  const auto read = [](std::istream& in) { return std::string(std::istreambuf_iterator<char>(in), {}); };
  if (path == "-") return read(std::cin);
  std::ifstream file(path, std::ios::binary);
  if (!file) throw SystemFailure(fmt::format("can't open {}", path));
  return read(file);
}

std::size_t peak_memory_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return std::size_t(usage.ru_maxrss) * 1024;
}

double seconds_since_start() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - kStart).count();
}

}  // namespace ops_transformer::cli

int main(int argc, char** argv) { return ops_transformer::cli::run(argc, argv); }
