// SPDX-License-Identifier: Apache-2.0
#include "llm/config.h"

#include <fmt/format.h>

#include <limits>

#include "llm/utf8.h"

namespace ops_transformer::llm {
namespace {

constexpr std::int64_t kMostLayers = 1024, kLargestSize = std::int64_t{1} << 24;

// Keys of the file's architecture, each checked to lie in [low, high].
class Keys {
 public:
  Keys(const ModelFile& file, const std::string& architecture)
      : metadata_(file.metadata()), prefix_(architecture + ".") {}

  std::optional<std::int64_t> find(const char* key, std::int64_t low, std::int64_t high) const {
    const auto value = metadata_.get<std::int64_t>(prefix_ + key);
    if (value && (*value < low || *value > high)) {
      throw InvalidFile(fmt::format("{}{} is {}, must be from {} to {}", prefix_, key, *value, low, high));
    }
    return value;
  }
  std::int64_t require(const char* key, std::int64_t low, std::int64_t high) const {
    metadata_.require<std::int64_t>(prefix_ + key);
    return *find(key, low, high);
  }
  double positive(const char* key, double fallback, double most = std::numeric_limits<double>::max()) const {
    const double value = metadata_.get_or<double>(prefix_ + key, fallback);
    if (!(value > 0 && value <= most)) {
      throw InvalidFile(fmt::format("{}{} is {}, must be above 0 and at most {}", prefix_, key, value, most));
    }
    return value;
  }
  std::string text(const char* key) const { return metadata_.get_or<std::string>(prefix_ + key, ""); }
  std::string name(const char* key) const { return prefix_ + key; }

 private:
  const GgufMetadata& metadata_;
  std::string prefix_;
};

void refuse(const Keys& keys, const char* key, const std::string& value, const char* known) {
  throw InvalidFile(
      fmt::format("{} is '{}', which is not supported; supported: {}", keys.name(key), shown(value), known));
}

}  // namespace

ModelConfig read_config(const ModelFile& file) {
  ModelConfig config;
  config.architecture = file.metadata().require<std::string>("general.architecture");
  if (config.architecture != "llama") {
    throw InvalidFile(fmt::format("unsupported architecture '{}'; supported: llama", shown(config.architecture)));
  }
  config.name = file.metadata().get_or<std::string>("general.name", "");
  const Keys keys(file, config.architecture);
  config.num_layers = keys.require("block_count", 1, kMostLayers);
  config.hidden_size = keys.require("embedding_length", 1, kLargestSize);
  config.intermediate_size = keys.require("feed_forward_length", 1, kLargestSize);
  config.num_q_heads = keys.require("attention.head_count", 1, 65536);
  config.num_kv_heads = keys.find("attention.head_count_kv", 1, 65536).value_or(config.num_q_heads);
  if (config.num_q_heads % config.num_kv_heads != 0) {
    throw InvalidFile(fmt::format("{} ({}) must be a multiple of {} ({})", keys.name("attention.head_count"),
                                  config.num_q_heads, keys.name("attention.head_count_kv"), config.num_kv_heads));
  }
  const auto key_length = keys.find("attention.key_length", 1, 768);
  if (!key_length && config.hidden_size % config.num_q_heads != 0) {
    throw InvalidFile(fmt::format("{} ({}) must be a multiple of {} ({})", keys.name("embedding_length"),
                                  config.hidden_size, keys.name("attention.head_count"), config.num_q_heads));
  }
  config.head_dim = key_length.value_or(config.hidden_size / config.num_q_heads);
  if (config.head_dim > 768) {
    throw InvalidFile(fmt::format("head dimension is {}, must be at most 768", config.head_dim));
  }
  if (const auto value_length = keys.find("attention.value_length", 1, 768);
      value_length.value_or(config.head_dim) != config.head_dim) {
    refuse(keys, "attention.value_length", std::to_string(*value_length), "the key length");
  }
  config.rotary_dim = keys.find("rope.dimension_count", 1, config.head_dim).value_or(config.head_dim);
  if (config.rotary_dim % 2 != 0) {
    throw InvalidFile(fmt::format("{} is {}, must be even", keys.name("rope.dimension_count"), config.rotary_dim));
  }
  config.context_len = keys.require("context_length", 1, std::int64_t{1} << 31);
  config.norm_eps = float(keys.positive("attention.layer_norm_rms_epsilon", 1e-5, 1.0));
  config.rope_theta = keys.positive("rope.freq_base", 10000.0);
  const std::string scaling = keys.text("rope.scaling.type");
  if (scaling == "linear") {
    config.position_scale = keys.positive("rope.scaling.factor", 1.0);
  } else if (scaling.empty()) {
    config.position_scale = keys.positive("rope.scale_linear", 1.0);
  } else if (scaling != "none") {
    refuse(keys, "rope.scaling.type", scaling, "none, linear");
  }
  if (const auto experts = keys.find("expert_count", 0, 65536); experts.value_or(0) != 0) {
    refuse(keys, "expert_count", std::to_string(*experts), "0 (dense models)");
  }
  if (const auto window = keys.find("attention.sliding_window", 0, std::int64_t{1} << 31); window.value_or(0) > 0) {
    config.window = window;
  }
  const ModelTensor& embedding = file.tensor("token_embd.weight");
  config.vocab_size = std::int64_t(embedding.rows());
  if (const auto vocab = keys.find("vocab_size", 0, std::int64_t{1} << 31); vocab && *vocab != config.vocab_size) {
    throw InvalidFile(
        fmt::format("{} is {}, but token_embd.weight has {} rows", keys.name("vocab_size"), *vocab, config.vocab_size));
  }
  return config;
}

}  // namespace ops_transformer::llm
