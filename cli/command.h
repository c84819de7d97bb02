// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "llm/model.h"
#include "ops_transformer/base/context.h"
#include "ops_transformer/profiler/profiler.h"

namespace ops_transformer::cli {

using Json = nlohmann::ordered_json;

enum ExitCode : int { kOk = 0, kFailed = 1, kUsage = 2, kBadFile = 3 };

/// Options that most subcommands share.
struct ModelOptions {
  std::string model;
  std::optional<int> threads;
  bool json = false;
  bool exact = false;
  bool deterministic = false;
  std::string profile;  // path of a trace; empty: off

  void add_to(CLI::App& command);
  ContextOptions context() const;
  /// Loads with a progress bar on stderr where that is a terminal; the tokenizer's warnings go there too.
  std::unique_ptr<llm::Model> load(Context& context) const;
};

/// Profiles a context while it lives, where --profile asks for it.
class Profiling {
 public:
  /// Throws SystemFailure where the trace can't be written: before the work that it is about.
  Profiling(Context& context, const ModelOptions& options);
  ~Profiling();
  Profiling(const Profiling&) = delete;
  Profiling& operator=(const Profiling&) = delete;

  /// Writes the trace and prints the table on stderr. Throws SystemFailure.
  void report();

 private:
  Context& context_;
  std::string path_;
  std::unique_ptr<Profiler> profiler_;
};

/// Accepts whole numbers from `low` to `high` only; CLI11 takes the nearest end of a type for what lies beyond it, and
/// the other end for a negative unsigned number.
template <class T>
CLI::Validator whole_number(T low, T high);
constexpr std::int64_t kMostTokens = std::int64_t{1} << 31;  // the longest context that a file can ask for

/// Writes to standard output at once. Throws SystemFailure.
void print(std::string_view text);
void print_json(const Json& json);
/// Reads a whole file of at most 256 MiB; "-" is standard input. Throws SystemFailure.
std::string read_text(const std::string& path);
/// The most memory that the process has held, in bytes.
std::size_t peak_memory_bytes();
double seconds_since_start();

// Each adds its subcommand to the program; its callback does the work and throws on failure.
void add_generate(CLI::App& program);
void add_chat(CLI::App& program);
void add_inspect(CLI::App& program);
void add_bench(CLI::App& program);
void add_perplexity(CLI::App& program);
void add_explain(CLI::App& program);
void add_convert(CLI::App& program);
void add_compare(CLI::App& program);

}  // namespace ops_transformer::cli
