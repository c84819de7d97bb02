// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cli/child.h"
#include "cli/command.h"
#include "cli/progress.h"
#include "llm/llama_unfused.h"
#include "ops_transformer/base/error.h"

namespace ops_transformer::cli {
namespace {

struct Options {
  ModelOptions model;
  std::int64_t prompt_tokens = 512, generate = 128, depth = 0;
  int repeat = 5;
  bool unfused = false, compare = false;
};

using Clock = std::chrono::steady_clock;

double median(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

// A model with a cache of one sequence.
class Subject {
 public:
  virtual ~Subject() = default;
  virtual std::int64_t vocab_size() const = 0;
  virtual void forward(std::span<const std::int32_t> tokens, std::span<float> logits) = 0;
  virtual void truncate(std::int64_t length) = 0;
  // Bytes that decoding a token after `length` others must read.
  virtual std::size_t bytes_per_token(std::int64_t length) const = 0;
};

class Fused final : public Subject {
 public:
  Fused(Context& context, const ModelOptions& options, std::int64_t most_tokens)
      : context_(context),
        model_(options.load(context)),
        pool_(model_->make_kv_pool(most_tokens)),
        sequence_(pool_.add_sequence()) {}

  std::int64_t vocab_size() const override { return model_->config().vocab_size; }
  void forward(std::span<const std::int32_t> tokens, std::span<float> logits) override {
    const llm::BatchSlice slice[] = {{sequence_, std::int64_t(tokens.size())}};
    const std::int64_t last[] = {std::int64_t(tokens.size()) - 1};
    model_->forward(context_, pool_, {tokens, slice, last}, {logits.data(), DType::f32, {1, vocab_size()}});
  }
  void truncate(std::int64_t length) override { pool_.truncate(sequence_, length); }
  std::size_t bytes_per_token(std::int64_t length) const override {
    return model_->weight_bytes() + model_->kv_bytes_per_token() * std::size_t(length);
  }

 private:
  Context& context_;
  std::unique_ptr<llm::Model> model_;
  KvPool pool_;
  SequenceId sequence_;
};

class Unfused final : public Subject {
 public:
  Unfused(Context& context, const ModelOptions& options, std::int64_t most_tokens)
      : context_(context), model_(llm::UnfusedLlama::load(context, options.model, most_tokens)) {}

  std::int64_t vocab_size() const override { return model_->config().vocab_size; }
  void forward(std::span<const std::int32_t> tokens, std::span<float> logits) override {
    model_->forward(context_, tokens, logits);
  }
  void truncate(std::int64_t length) override { model_->truncate(length); }
  std::size_t bytes_per_token(std::int64_t length) const override {
    const llm::ModelConfig& config = model_->config();
    return model_->weight_bytes() + std::size_t(config.num_layers * 2 * config.kv_size() * length) * sizeof(float);
  }

 private:
  Context& context_;
  std::unique_ptr<llm::UnfusedLlama> model_;
};

// Made-up tokens, the same in every round.
void fill(Subject& subject, std::int64_t count, std::span<float> logits) {
  constexpr std::int64_t kChunk = 512;
  for (std::int64_t begin = 0; begin < count; begin += kChunk) {
    std::vector<std::int32_t> tokens;
    for (std::int64_t i = begin; i < std::min(count, begin + kChunk); ++i) {
      tokens.push_back(std::int32_t((i * 7919 + 13) % subject.vocab_size()));
    }
    subject.forward(tokens, logits);
  }
}

// Greedy steps, each fed by the one before.
void generate(Subject& subject, std::int64_t count, std::span<float> logits) {
  std::int32_t token = std::int32_t(13 % subject.vocab_size());
  for (std::int64_t i = 0; i < count; ++i) {
    subject.forward(std::span(&token, 1), logits);
    token = std::int32_t(std::ranges::max_element(logits) - logits.begin());
  }
}

Json measure(const Options& options) {
  Context context(options.model.context());
  const std::int64_t most =
      std::max<std::int64_t>(1, options.depth + std::max(options.prompt_tokens, options.generate));
  if (const std::int64_t longest = llm::read_config(llm::ModelFile::open(options.model.model)).context_len;
      most > longest)
    throw InvalidArgument(fmt::format(
        "--depth with --prompt-tokens or --generate is {} tokens, the model's context holds {}", most, longest));
  std::unique_ptr<Subject> subject;
  if (options.unfused) {
    subject = std::make_unique<Unfused>(context, options.model, most);
  } else {
    subject = std::make_unique<Fused>(context, options.model, most);
  }
  std::vector<float> logits(std::size_t(subject->vocab_size()));
  ProgressBar bar("bench");
  fill(*subject, options.depth, logits);
  std::vector<double> prefill, decode;
  Profiling profiling(context, options.model);
  for (int round = -1; round < options.repeat; ++round) {  // the first one warms up and is not counted
    bar.update(double(round + 1) / double(options.repeat + 1));
    const auto timed = [&](std::vector<double>& rates, std::int64_t tokens, auto work) {
      if (tokens == 0) return;
      const auto start = Clock::now();
      work(*subject, tokens, logits);
      if (round >= 0) rates.push_back(double(tokens) / std::chrono::duration<double>(Clock::now() - start).count());
      subject->truncate(options.depth);
    };
    timed(prefill, options.prompt_tokens, fill);
    timed(decode, options.generate, generate);
  }
  profiling.report();
  return {{"prefill_tokens_per_second", prefill.empty() ? 0.0 : median(prefill)},
          {"decode_tokens_per_second", decode.empty() ? 0.0 : median(decode)},
          {"decode_bytes_per_token", subject->bytes_per_token(options.depth + options.generate / 2)},
          {"peak_memory_bytes", peak_memory_bytes()},
          {"prompt_tokens", options.prompt_tokens},
          {"generate", options.generate},
          {"depth", options.depth},
          {"repeat", options.repeat},
          {"threads", context.num_threads()},
          {"isa", isa_name(context.isa())},
          {"unfused", options.unfused}};
}

// Runs this program again, so that each side's peak memory is its own; the child's JSON.
Json measure_in_child(const Options& options, bool unfused) {
  std::vector<std::string> words = {"bench", "--json", "--model", options.model.model};
  for (const auto& [name, value] : {std::pair{"--prompt-tokens", options.prompt_tokens},
                                    {"--generate", options.generate},
                                    {"--depth", options.depth},
                                    {"--repeat", std::int64_t{options.repeat}}}) {
    words.insert(words.end(), {name, std::to_string(value)});
  }
  if (options.model.threads) words.insert(words.end(), {"--threads", std::to_string(*options.model.threads)});
  if (options.model.deterministic) words.push_back("--deterministic");
  if (unfused) words.push_back("--unfused");
  return run_in_child(std::move(words));
}

void compare(const Options& options) {
  const Json unfused = measure_in_child(options, true), fused = measure_in_child(options, false);
  if (options.model.json) {
    print_json({{"unfused", unfused}, {"fused", fused}});
    return;
  }
  fmt::print("{} threads, {}, depth {}: the same model and kernels, each operator alone and fused\n\n",
             fused["threads"].get<int>(), fused["isa"].get<std::string>(), options.depth);
  fmt::print("{:<28}{:>14}{:>14}{:>12}\n", "", "unfused", "fused", "ratio");
  const auto row = [&](const std::string& title, const char* key, double unit, bool more_is_better) {
    const double before = unfused[key].get<double>() / unit, after = fused[key].get<double>() / unit;
    if (before == 0) return;
    fmt::print("{:<28}{:>14.1f}{:>14.1f}{:>11.2f}x\n", title, before, after,
               more_is_better ? after / before : before / after);
  };
  row(fmt::format("prefill {}, tokens/s", options.prompt_tokens), "prefill_tokens_per_second", 1, true);
  row(fmt::format("decode {}, tokens/s", options.generate), "decode_tokens_per_second", 1, true);
  row("peak memory, MB", "peak_memory_bytes", 1e6, false);
}

void run(const Options& options) {
  if (options.compare) return compare(options);
  const Json result = measure(options);
  if (options.model.json) return print_json(result);
  fmt::print("{} threads, {}, depth {}\n", result["threads"].get<int>(), result["isa"].get<std::string>(),
             options.depth);
  if (options.prompt_tokens) {
    fmt::print("prefill of {:>5} tokens  {:>9.1f} tokens/s\n", options.prompt_tokens,
               result["prefill_tokens_per_second"].get<double>());
  }
  if (options.generate) {
    const double rate = result["decode_tokens_per_second"].get<double>();
    fmt::print("decode of  {:>5} tokens  {:>9.1f} tokens/s, {:.1f} GB/s\n", options.generate, rate,
               rate * result["decode_bytes_per_token"].get<double>() / 1e9);
  }
  fmt::print("peak memory {:.0f} MB\n", result["peak_memory_bytes"].get<double>() / 1e6);
}

}  // namespace

void add_bench(CLI::App& program) {
  auto* command = program.add_subcommand("bench", "Tokens per second of prefill and decode (medians).");
  auto options = std::make_shared<Options>();
  options->model.add_to(*command);
  command->add_option("--prompt-tokens", options->prompt_tokens, "tokens of a prompt; 0: no prefill")
      ->capture_default_str()
      ->check(whole_number(std::int64_t{0}, kMostTokens));
  command->add_option("--generate", options->generate, "tokens to decode; 0: no decode")
      ->capture_default_str()
      ->check(whole_number(std::int64_t{0}, kMostTokens));
  command->add_option("--depth", options->depth, "tokens already in the cache")
      ->capture_default_str()
      ->check(whole_number(std::int64_t{0}, kMostTokens));
  command->add_option("--repeat", options->repeat, "rounds counted")
      ->capture_default_str()
      ->check(whole_number(1, 1000000));
  auto* unfused = command->add_flag("--unfused", options->unfused,
                                    "measure the same kernels used one by one, with the full score matrix");
  auto* compare = command->add_flag("--compare", options->compare, "measure both ways, each in a process of its own");
  compare->excludes(unfused);
  for (CLI::Option* option : {unfused, compare}) option->excludes(command->get_option("--exact"));
  compare->excludes(command->get_option("--profile"));
  command->callback([options] { run(*options); });
}

}  // namespace ops_transformer::cli
