// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <iostream>

#include "cli/command.h"
#include "cli/progress.h"
#include "ops_transformer/base/error.h"

namespace ops_transformer::cli {
namespace {

const auto kStart = std::chrono::steady_clock::now();

// Standard streams that came closed get a descriptor that reads as empty and can't be written, so that no file opened
// later takes their number and is written to.
void open_standard_streams() {
  for (int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(descriptor, F_GETFD) < 0 && open("/dev/null", O_RDONLY) != descriptor) std::abort();
  }
}

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
  add_convert(program);
  add_compare(program);
  try {
    try {
      program.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
      if (program.exit(error) != 0) return kUsage;
    }
    print("");
    return kOk;
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

void ModelOptions::add_to(CLI::App& command) {
  command.add_option("-m,--model", model, "GGUF file, or folder of safetensors")->check(CLI::ExistingPath)->required();
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
  auto loaded = llm::load_model(context, model, options);
  for (const std::string& warning : loaded->tokenizer().warnings()) fmt::print(stderr, "warning: {}\n", warning);
  return loaded;
}

Profiling::Profiling(Context& context, const ModelOptions& options) : context_(context), path_(options.profile) {
  if (path_.empty()) return;
  profiler_ = std::make_unique<Profiler>();
  profiler_->write_trace(path_);
  context_.set_profiler(profiler_.get());
}

Profiling::~Profiling() { context_.set_profiler(nullptr); }

void Profiling::report() {
  if (!profiler_) return;
  fmt::print(stderr, "\n{}", profiler_->table());
  profiler_->write_trace(path_);
}

template <class T>
CLI::Validator whole_number(T low, T high) {
  const auto check = [low, high](const std::string& text) -> std::string {
    T value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error == std::errc() && end == text.data() + text.size() && value >= low && value <= high) return {};
    return fmt::format("'{}', must be a whole number from {} to {}", text, low, high);
  };
  return CLI::Validator(check, "", "");
}
template CLI::Validator whole_number(int, int);
template CLI::Validator whole_number(std::int64_t, std::int64_t);
template CLI::Validator whole_number(std::uint64_t, std::uint64_t);

void print(std::string_view text) {
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  if (std::fflush(stdout) != 0 || !written || std::ferror(stdout) || !std::cout.flush()) {
    throw SystemFailure(fmt::format("can't write to standard output: {}", std::strerror(errno)));
  }
}

void print_json(const Json& json) { print(json.dump(2, ' ', false, Json::error_handler_t::replace) + '\n'); }

std::string read_text(const std::string& path) {
  constexpr std::size_t kMostBytes = std::size_t{256} << 20;
  std::FILE* const file = path == "-" ? stdin : std::fopen(path.c_str(), "rb");
  if (!file) throw SystemFailure(fmt::format("can't open '{}': {}", path, std::strerror(errno)));
  const std::unique_ptr<std::FILE, void (*)(std::FILE*)> closing(file, [](std::FILE* open) {
    if (open != stdin) std::fclose(open);
  });
  std::string text;
  char part[1 << 16];
  for (std::size_t n; (n = std::fread(part, 1, sizeof part, file)) > 0;) {
    text.append(part, n);
    if (text.size() > kMostBytes) throw SystemFailure(fmt::format("'{}' has more than {} bytes", path, kMostBytes));
  }
  if (std::ferror(file)) throw SystemFailure(fmt::format("can't read '{}': {}", path, std::strerror(errno)));
  return text;
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

int main(int argc, char** argv) {
  ops_transformer::cli::open_standard_streams();
  return ops_transformer::cli::run(argc, argv);
}
