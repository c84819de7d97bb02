// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include "cli/child.h"
#include "cli/command.h"
#include "cli/comparison_report.h"
#include "llm/formats/output_file.h"
#include "ops_transformer/attention/causal_softmax.h"
#include "ops_transformer/attention/flash_attention.h"
#include "ops_transformer/base/error.h"
#include "ops_transformer/gemm/tensor_matmul.h"
#include "ops_transformer/tuning/device_spec.h"

namespace ops_transformer::cli {
namespace {

constexpr const char *kNaive = "naive", *kFlash = "flash_attention";
constexpr std::int64_t kMostLen = std::int64_t{1} << 20;

struct Options {
  std::vector<std::int64_t> lens = {512, 1024, 2048, 4096, 8192, 16384, 32768};
  std::int64_t heads = 32, kv_heads = 0, head_dim = 128;
  std::string dtype = "bf16", side, html;
  std::optional<int> threads;
  int repeat = 3;
  bool json = false, force = false;

  std::int64_t num_kv_heads() const { return kv_heads > 0 ? kv_heads : heads; }
  DType kv_dtype() const { return dtype == "f32" ? DType::f32 : DType::bf16; }
  double input_bytes(std::int64_t len) const {
    return double(element_bytes(kv_dtype())) * double(2 * heads + 2 * num_kv_heads()) * double(head_dim * len);
  }
  double score_bytes(std::int64_t len) const { return 4.0 * double(heads) * double(len) * double(len); }
};

// Memory that a process can have without swapping and within its limit.
double available_bytes() {
  rlimit limit{RLIM_INFINITY, RLIM_INFINITY};
  getrlimit(RLIMIT_AS, &limit);
  auto bytes = double(limit.rlim_cur);
  std::ifstream file("/proc/meminfo");
  for (std::string key; file >> key; file.ignore(256, '\n')) {
    double kilobytes = 0;
    if (key == "MemAvailable:" && file >> kilobytes) bytes = std::min(bytes, 1024 * kilobytes);
  }
  return bytes;
}

// Tensors [1, heads, len, dim] of reproducible values about 0.
struct Tensors {
  Tensors(const Options& options, std::int64_t len)
      : q(make(options.kv_dtype(), options.heads * len * options.head_dim)),
        k(make(options.kv_dtype(), options.num_kv_heads() * len * options.head_dim)),
        v(make(options.kv_dtype(), options.num_kv_heads() * len * options.head_dim)),
        out(make(options.kv_dtype(), options.heads * len * options.head_dim)) {}

  static Buffer make(DType dtype, std::int64_t count) {
    Buffer buffer(std::size_t(count) * element_bytes(dtype));
    std::uint32_t state = 1;
    for (std::int64_t i = 0; i < count; ++i) {
      state = state * 1664525 + 1013904223;
      const float value = float(state >> 8) / float(1 << 23) - 1;
      if (dtype == DType::f32) {
        buffer.as<float>()[i] = value;
      } else {
        std::memcpy(buffer.as<std::byte>() + 2 * i, reinterpret_cast<const std::byte*>(&value) + 2, 2);
      }
    }
    return buffer;
  }

  Buffer q, k, v, out;
};

// Scores of every query and key, their softmax, and the product with the values, each a call of its own. The heads of a
// group read the same keys, by a stride of 0.
void naive_attention(Context& context, const Options& options, std::int64_t len, const Tensors& tensors,
                     Buffer& scores) {
  const std::int64_t group = options.heads / options.num_kv_heads(), dim = options.head_dim;
  const DType dtype = options.kv_dtype();
  const std::vector<std::int64_t> shape = {options.num_kv_heads(), group, len, dim};
  const ConstTensorView q(tensors.q.data(), dtype, {shape[0], group, len, dim});
  const ConstTensorView k(tensors.k.data(), dtype, {shape[0], 1, len, dim}),
      v(tensors.v.data(), dtype, {shape[0], 1, len, dim});
  const TensorView all(scores.data(), DType::f32, {shape[0], group, len, len});
  matmul(context, q, k, all, {.transpose_b = true});
  causal_softmax(context, {scores.data(), DType::f32, {options.heads, len, len}}, 1.0f / std::sqrt(float(dim)));
  matmul(context, all, v,
         {const_cast<void*>(static_cast<const void*>(tensors.out.data())), dtype, {shape[0], group, len, dim}});
}

Json measure(const Options& options, std::int64_t len) {
  Context context({.num_threads = options.threads});
  Tensors tensors(options, len);
  const bool naive = options.side == kNaive;
  Buffer scores(naive ? std::size_t(options.score_bytes(len)) : 0);
  const DType dtype = options.kv_dtype();
  const ConstTensorView q(tensors.q.data(), dtype, {1, options.heads, len, options.head_dim}),
      k(tensors.k.data(), dtype, {1, options.num_kv_heads(), len, options.head_dim}),
      v(tensors.v.data(), dtype, {1, options.num_kv_heads(), len, options.head_dim});
  const TensorView out(tensors.out.data(), dtype, {1, options.heads, len, options.head_dim});
  std::vector<double> seconds;
  for (int round = 0; round <= options.repeat; ++round) {  // the first one touches the memory
    const auto start = std::chrono::steady_clock::now();
    if (naive) {
      naive_attention(context, options, len, tensors, scores);
    } else {
      flash_attention(context, q, k, v, out, {.mask = Mask::causal});
    }
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  std::sort(seconds.begin() + 1, seconds.end());
  // Scores are written, read and written again, and read.
  const double moved = options.input_bytes(len) + (naive ? 4 * options.score_bytes(len) : 0);
  return {{"seconds", seconds[std::size_t(1 + (options.repeat - 1) / 2)]},
          {"peak_memory_bytes", peak_memory_bytes()},
          {"workspace_bytes", context.workspace_high_water_bytes() + scores.size()},
          {"bytes_moved", moved}};
}

Json measure_in_child(const Options& options, std::int64_t len, const char* side) {
  const double needed = options.input_bytes(len) + (side == kNaive ? options.score_bytes(len) : 0),
               available = available_bytes();
  if (1.1 * needed > available) {
    return {{"refused", fmt::format("needs {:.1f} GB, {:.1f} GB are free", needed / 1e9, available / 1e9)}};
  }
  std::vector<std::string> words = {"compare", "attention", "--json", "--side", side};
  for (const auto& [name, value] : {std::pair{"--lens", len},
                                    {"--heads", options.heads},
                                    {"--kv-heads", options.num_kv_heads()},
                                    {"--head-dim", options.head_dim},
                                    {"--repeat", std::int64_t{options.repeat}}}) {
    words.insert(words.end(), {name, std::to_string(value)});
  }
  words.insert(words.end(), {"--dtype", options.dtype});
  if (options.threads) words.insert(words.end(), {"--threads", std::to_string(*options.threads)});
  return run_in_child(std::move(words));
}

void run(const Options& options) {
  if (options.heads % options.num_kv_heads() != 0) {
    throw InvalidArgument(
        fmt::format("--heads is {}, must be a multiple of --kv-heads, {}", options.heads, options.num_kv_heads()));
  }
  if (!options.side.empty()) return print_json(measure(options, options.lens.at(0)));
  std::optional<llm::OutputFile> html;
  if (!options.html.empty()) html.emplace(options.html, 0, options.force);
  std::vector<std::int64_t> lens = options.lens;
  std::ranges::sort(lens);
  Json points = Json::array();
  for (const std::int64_t len : lens) {
    points.push_back({{"size", len},
                      {kNaive, measure_in_child(options, len, kNaive)},
                      {kFlash, measure_in_child(options, len, kFlash)}});
    fmt::print(stderr, "{} of {} lengths measured\n", points.size(), lens.size());
  }
  const Context context({.num_threads = options.threads});
  const Json comparison = {
      {"title", "Causal attention: scores in memory, and flash attention"},
      {"facts", fmt::format("{} query and {} key heads of {}, {}, {} threads, level {}; medians of {}", options.heads,
                            options.num_kv_heads(), options.head_dim, options.dtype, context.num_threads(),
                            isa_name(context.isa()), options.repeat)},
      {"size_name", "tokens"},
      {"sides", {kNaive, kFlash}},
      {"points", points}};
  if (html) {
    const std::string page = html_page(comparison);
    html->write(std::as_bytes(std::span(page)));
    html->finish();
  }
  if (options.json) return print_json(comparison);
  print_table(comparison);
}

}  // namespace

void add_compare(CLI::App& program) {
  auto* command = program.add_subcommand(
      "compare", "Time, memory and bytes of an operator against the same work done naively, at growing sizes.");
  command->require_subcommand(1);
  auto* attention = command->add_subcommand("attention", "flash attention against scores that are stored");
  auto options = std::make_shared<Options>();
  attention->add_option("--lens", options->lens, "sequence lengths")
      ->delimiter(',')
      ->capture_default_str()
      ->check(whole_number(std::int64_t{1}, kMostLen));
  attention->add_option("--heads", options->heads, "query heads")
      ->capture_default_str()
      ->check(whole_number(std::int64_t{1}, std::int64_t{4096}));
  attention->add_option("--kv-heads", options->kv_heads, "key heads (default: as many)")
      ->check(whole_number(std::int64_t{1}, std::int64_t{4096}));
  attention->add_option("--head-dim", options->head_dim, "length of a head")
      ->capture_default_str()
      ->check(whole_number(std::int64_t{1}, std::int64_t{768}));
  attention->add_option("--dtype", options->dtype, "of queries, keys and values")
      ->capture_default_str()
      ->check(CLI::IsMember({"f32", "bf16"}));
  attention->add_option("-t,--threads", options->threads, "threads to use (default: the CPUs this process may use)");
  attention->add_option("--repeat", options->repeat, "rounds counted")
      ->capture_default_str()
      ->check(whole_number(1, 1000000));
  attention->add_flag("--json", options->json, "print one JSON object on standard output");
  attention->add_option("--html", options->html, "write a page with charts to this file");
  attention->add_flag("--force", options->force, "write over a file that is there");
  attention->add_option("--side", options->side, "measure one side at one length")
      ->check(CLI::IsMember({kNaive, kFlash}))
      ->group("");
  attention->callback([options] { run(*options); });
}

}  // namespace ops_transformer::cli
