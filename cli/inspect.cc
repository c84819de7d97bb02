// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <map>

#include "cli/command.h"
#include "llm/formats/model_file.h"
#include "llm/tokenizer/utf8.h"
#include "ops_transformer/gemm/packed_weights.h"
#include "ops_transformer/gemm/weight_format.h"

namespace ops_transformer::cli {
namespace {

struct Options {
  ModelOptions model;
  std::int64_t context_len = 0;
  bool all = false;
};

// What loading the model and filling a context of `context_len` tokens will take.
struct MemoryNeed {
  std::size_t weights = 0, kv_cache = 0;
};

MemoryNeed memory_need(const llm::ModelFile& file, const llm::ModelConfig& config, std::int64_t context_len) {
  MemoryNeed need;
  for (const llm::ModelTensor& tensor : file.tensors()) {
    need.weights +=
        tensor.rank == 2 && find_weight_format(tensor.dtype)
            ? PackedWeights::packed_bytes(tensor.dtype, std::int64_t(tensor.rows()), std::int64_t(tensor.cols()))
            : tensor.bytes;
  }
  const std::size_t bytes_per_token =
      std::size_t(config.num_layers * 2 * config.kv_size()) * element_bytes(DType::bf16);
  if (__builtin_mul_overflow(bytes_per_token, std::size_t(context_len), &need.kv_cache))
    throw InvalidFile(fmt::format("a cache of {} bytes for each of {} tokens can't be", bytes_per_token, context_len));
  return need;
}

void run(const Options& options) {
  const llm::ModelFile file = llm::ModelFile::open(options.model.model);
  const llm::ModelConfig config = llm::read_config(file);
  const std::int64_t context_len = options.context_len > 0 ? options.context_len : config.context_len;
  const MemoryNeed need = memory_need(file, config, context_len);
  std::map<std::string_view, std::pair<std::size_t, std::size_t>> by_type;  // dtype: tensors, bytes
  for (const llm::ModelTensor& tensor : file.tensors()) {
    auto& [count, bytes] = by_type[dtype_name(tensor.dtype)];
    ++count;
    bytes += tensor.bytes;
  }
  const std::size_t shown_len = options.all ? 4096 : 80;
  if (options.model.json) {
    Json metadata = Json::object(), tensors = Json::array();
    for (const llm::GgufEntry& entry : file.metadata().entries())
      metadata[std::string(entry.key)] = llm::gguf_value_text(entry, shown_len);
    for (const llm::ModelTensor& tensor : file.tensors()) {
      tensors.push_back({{"name", tensor.name},
                         {"type", dtype_name(tensor.dtype)},
                         {"shape", tensor.shape()},
                         {"bytes", tensor.bytes}});
    }
    print_json({{"file", file.path()},
                {"file_bytes", file.size()},
                {"architecture", config.architecture},
                {"metadata", metadata},
                {"tensors", tensors},
                {"context", context_len},
                {"weight_memory_bytes", need.weights},
                {"kv_cache_bytes", need.kv_cache}});
    return;
  }
  std::string out;
  out +=
      fmt::format("{}: {}, {} bytes, {} tensors\n\n", file.path(), file.format(), file.size(), file.tensors().size());
  for (const llm::GgufEntry& entry : file.metadata().entries()) {
    out += fmt::format("  {:<44} {}\n", llm::shown(entry.key), llm::gguf_value_text(entry, shown_len));
  }
  out += "\n";
  for (const auto& [name, total] : by_type)
    out += fmt::format("  {:>5} tensors of {:<5} {:>14} bytes\n", total.first, name, total.second);
  if (options.all) {
    out += "\n";
    for (const llm::ModelTensor& tensor : file.tensors()) {
      std::string shape;
      for (std::size_t size : tensor.shape()) shape += fmt::format("{}{}", shape.empty() ? "" : " x ", size);
      out += fmt::format("  {:<32} {:<5} {:>18} {:>12} bytes\n", llm::shown(tensor.name), dtype_name(tensor.dtype),
                         shape, tensor.bytes);
    }
  }
  out += fmt::format("\n  needs {:.1f} MB for weights and {:.1f} MB for a bf16 cache of {} tokens\n",
                     double(need.weights) / 1e6, double(need.kv_cache) / 1e6, context_len);
  print(out);
}

}  // namespace

void add_inspect(CLI::App& program) {
  auto* command =
      program.add_subcommand("inspect", "Metadata and tensors of a model file, and the memory it will need.");
  auto options = std::make_shared<Options>();
  command->add_option("-m,--model", options->model.model, "GGUF file, or folder of safetensors")
      ->required()
      ->check(CLI::ExistingPath);
  command->add_flag("--json", options->model.json, "print one JSON object on standard output");
  command->add_option("--context", options->context_len, "tokens of cache to count (default: the model's context)")
      ->check(whole_number(std::int64_t{1}, kMostTokens));
  command->add_flag("--all", options->all, "list every tensor, and metadata in full");
  command->callback([options] { run(*options); });
}

}  // namespace ops_transformer::cli
