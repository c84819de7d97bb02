// SPDX-License-Identifier: Apache-2.0
#include "llm/config.h"

#include <fmt/format.h>

#include "llm/architecture.h"
#include "llm/config_keys.h"
#include "llm/tokenizer/utf8.h"

namespace ops_transformer::llm {
namespace {

void read_heads(const ConfigKeys& keys, ModelConfig& config) {
  config.num_q_heads = keys.require("attention.head_count", 1, kMostHeads);
  config.num_kv_heads = keys.find("attention.head_count_kv", 1, kMostHeads).value_or(config.num_q_heads);
  if (config.num_q_heads % config.num_kv_heads != 0) {
    throw InvalidFile(fmt::format("{} ({}) must be a multiple of {} ({})", keys.name("attention.head_count"),
                                  config.num_q_heads, keys.name("attention.head_count_kv"), config.num_kv_heads));
  }
  const auto key_length = keys.find("attention.key_length", 1, kLargestHead);
  if (!key_length && config.hidden_size % config.num_q_heads != 0) {
    throw InvalidFile(fmt::format("{} ({}) must be a multiple of {} ({})", keys.name("embedding_length"),
                                  config.hidden_size, keys.name("attention.head_count"), config.num_q_heads));
  }
  config.head_dim = key_length.value_or(config.hidden_size / config.num_q_heads);
  if (config.head_dim > kLargestHead) {
    throw InvalidFile(fmt::format("head dimension is {}, must be at most {}", config.head_dim, kLargestHead));
  }
  if (const auto value_length = keys.find("attention.value_length", 1, kLargestHead);
      value_length.value_or(config.head_dim) != config.head_dim) {
    keys.refuse("attention.value_length", std::to_string(*value_length), "the key length");
  }
  if (const auto window = keys.find("attention.sliding_window", 0, kMostPositions); window.value_or(0) > 0) {
    config.window = window;
  }
}

void read_rope(const ConfigKeys& keys, ModelConfig& config) {
  config.rotary_dim = keys.find("rope.dimension_count", 1, config.head_dim).value_or(config.head_dim);
  if (config.rotary_dim % 2 != 0) {
    throw InvalidFile(fmt::format("{} is {}, must be even", keys.name("rope.dimension_count"), config.rotary_dim));
  }
  config.rope_theta = keys.positive("rope.freq_base", 10000.0);
  const std::string scaling = keys.text("rope.scaling.type");
  const double factor = keys.positive("rope.scaling.factor", 1.0);
  const std::int64_t original_len =
      keys.find("rope.scaling.original_context_length", 1, kMostPositions).value_or(config.context_len);
  if (scaling.empty()) {
    config.position_scale = keys.positive("rope.scale_linear", 1.0);
  } else if (scaling == "linear") {
    config.position_scale = factor;
  } else if (scaling == "ntk") {
    config.rope_scaling = NtkScaling{factor};
  } else if (scaling == "llama3") {
    config.rope_scaling = Llama3Scaling{.factor = factor,
                                        .low_frequency_factor = keys.positive("rope.scaling.low_freq_factor", 1.0),
                                        .high_frequency_factor = keys.positive("rope.scaling.high_freq_factor", 4.0),
                                        .original_context_len = original_len};
  } else if (scaling == "yarn") {
    keys.require_only("rope.scaling.yarn_ext_factor", 1.0);
    keys.require_only("rope.scaling.yarn_attn_factor", 1.0);
    keys.require_only("rope.scaling.yarn_log_multiplier", 0.0);
    YarnScaling yarn{.factor = factor,
                     .original_context_len = original_len,
                     .beta_fast = keys.positive("rope.scaling.yarn_beta_fast", 32.0),
                     .beta_slow = keys.positive("rope.scaling.yarn_beta_slow", 1.0)};
    yarn.attention_factor = yarn.default_attention_factor() * keys.positive("rope.scaling.attn_factor", 1.0);
    config.rope_scaling = yarn;
  } else if (scaling != "none") {
    keys.refuse("rope.scaling.type", scaling, "none, linear, ntk, llama3, yarn");
  }
}

}  // namespace

ModelConfig read_config(const ModelFile& file) {
  const ConfigKeys keys(file);
  const Architecture& architecture = find_architecture(keys.architecture());
  ModelConfig config;
  config.architecture = keys.architecture();
  config.name = file.metadata().get_or<std::string>("general.name", "");
  config.num_layers = keys.require("block_count", 1, kMostLayers);
  config.hidden_size = keys.require("embedding_length", 1, kLargestSize);
  config.intermediate_size = keys.require("feed_forward_length", 1, kLargestSize);
  config.context_len = keys.require("context_length", 1, kMostPositions);
  config.norm_eps = float(keys.positive("attention.layer_norm_rms_epsilon", 1e-5, 1.0));
  read_heads(keys, config);
  read_rope(keys, config);
  if (const auto experts = keys.find("expert_count", 0, 65536); experts.value_or(0) != 0) {
    keys.refuse("expert_count", std::to_string(*experts), "0 (dense models)");
  }
  architecture.read_config(keys, config);
  const ModelTensor& embedding = file.tensor("token_embd.weight");
  config.vocab_size = std::int64_t(embedding.rows());
  if (const auto vocab = keys.find("vocab_size", 0, kMostPositions); vocab && *vocab != config.vocab_size) {
    throw InvalidFile(
        fmt::format("{} is {}, but token_embd.weight has {} rows", keys.name("vocab_size"), *vocab, config.vocab_size));
  }
  return config;
}

}  // namespace ops_transformer::llm
