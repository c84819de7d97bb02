// SPDX-License-Identifier: Apache-2.0
#include "llm/formats/hf_config.h"

#include <fmt/format.h>

#include <cmath>
#include <optional>
#include <string_view>

#include "llm/config.h"
#include "llm/tokenizer/utf8.h"
#include "ops_transformer/base/error.h"
#include "ops_transformer/posembedding/rope_scaling.h"

namespace ops_transformer::llm {
namespace {

struct Architecture {
  std::string_view model_class, model_type, gguf;
  std::string_view activation;
  double rope_theta;  // where the file names none, as is tied
  bool tied;
};
constexpr Architecture kArchitectures[] = {
    {"LlamaForCausalLM", "llama", "llama", "silu", 1e4, false},
    {"MistralForCausalLM", "mistral", "llama", "silu", 1e4, false},
    {"Qwen2ForCausalLM", "qwen2", "qwen2", "silu", 1e4, false},
    {"Qwen3ForCausalLM", "qwen3", "qwen3", "silu", 1e4, false},
    {"Gemma3ForCausalLM", "gemma3_text", "gemma3", "gelu_pytorch_tanh", 1e6, true},
};

const Architecture& find_architecture(const JsonObject& config) {
  const auto classes = config.texts("architectures");
  const bool has_class = classes && !classes->empty();
  const std::string name = has_class ? classes->front() : config.text("model_type").value_or("");
  std::string known;
  for (const Architecture& architecture : kArchitectures) {
    if (name == (has_class ? architecture.model_class : architecture.model_type)) return architecture;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", architecture.model_class);
  }
  config.refuse("architectures",
                fmt::format("names the unsupported architecture '{}'; supported: {}", shown(name), known));
}

/// Adds values under "<architecture>.<key>".
class Output {
 public:
  Output(GgufMetadataBuilder& metadata, std::string_view architecture) : metadata_(metadata), prefix_(architecture) {}
  void add(std::string_view key, std::int64_t value) { metadata_.add_u32(name(key), std::uint32_t(value)); }
  void add_real(std::string_view key, double value) { metadata_.add_f32(name(key), float(value)); }
  void add_text(std::string_view key, std::string_view value) { metadata_.add_string(name(key), value); }

 private:
  std::string name(std::string_view key) const { return fmt::format("{}.{}", prefix_, key); }
  GgufMetadataBuilder& metadata_;
  std::string_view prefix_;
};

double positive(const JsonObject& object, const std::string& key, std::optional<double> fallback) {
  const auto value = object.number(key);
  if (!value && !fallback) object.refuse(key, "is missing");
  const double result = value.value_or(fallback.value_or(0));
  if (!(result > 0 && std::isfinite(result))) object.refuse(key, fmt::format("is {}, must be above 0", result));
  return result;
}

/// How much slower each pair of dimensions turns.
std::vector<float> llama3_factors(const JsonObject& scaling, double theta, std::int64_t head_dim) {
  const Llama3Scaling llama3{
      .factor = positive(scaling, "factor", std::nullopt),
      .low_frequency_factor = positive(scaling, "low_freq_factor", 1.0),
      .high_frequency_factor = positive(scaling, "high_freq_factor", 4.0),
      .original_context_len = scaling.require_integer("original_max_position_embeddings", 1, kMostPositions)};
  if (llama3.low_frequency_factor >= llama3.high_frequency_factor) {
    scaling.refuse("low_freq_factor", fmt::format("is {}, must be below high_freq_factor {}",
                                                  llama3.low_frequency_factor, llama3.high_frequency_factor));
  }
  std::vector<float> factors;
  for (std::int64_t i = 0; i < head_dim; i += 2) {
    const auto kept = double(llama3.share_kept(std::pow(theta, -double(i) / double(head_dim))));
    factors.push_back(float(1 / ((1 - kept) / llama3.factor + kept)));
  }
  return factors;
}

/// `rope`: rope_scaling of older files, rope_parameters of newer ones.
void add_scaling(const JsonObject& rope, double theta, Output& out, HfModel& model) {
  const std::string type = rope.text("rope_type").value_or(rope.text("type").value_or("default"));
  if (type == "default") return;
  if (type == "llama3" && model.architecture == "llama") {
    model.frequency_factors = llama3_factors(rope, theta, model.head_dim);
  } else if (type == "linear") {
    out.add_text("rope.scaling.type", "linear");
    out.add_real("rope.scaling.factor", positive(rope, "factor", std::nullopt));
  } else if (type == "yarn") {
    for (const char* key : {"mscale", "mscale_all_dim", "truncate"}) {
      if (rope.has(key)) rope.refuse(key, "is set, which is not supported");
    }
    out.add_text("rope.scaling.type", "yarn");
    const double factor = positive(rope, "factor", std::nullopt);
    out.add_real("rope.scaling.factor", factor);
    if (rope.has("attention_factor")) {  // GGUF's multiplies the usual one
      out.add_real("rope.scaling.attn_factor", positive(rope, "attention_factor", std::nullopt) /
                                                   YarnScaling{.factor = factor}.default_attention_factor());
    }
    out.add("rope.scaling.original_context_length",
            rope.require_integer("original_max_position_embeddings", 1, kMostPositions));
    for (const char* key : {"beta_fast", "beta_slow"}) {
      if (rope.has(key)) out.add_real(fmt::format("rope.scaling.yarn_{}", key), positive(rope, key, std::nullopt));
    }
  } else {
    rope.refuse("rope_type", fmt::format("is '{}', which is not supported; supported: default, linear, llama3 (llama), "
                                         "yarn",
                                         shown(type)));
  }
}

void add_rope(const JsonObject& config, const Architecture& architecture, Output& out, HfModel& model) {
  const auto parameters = config.object("rope_parameters");
  auto rope = parameters;
  double theta = positive(config, "rope_theta", architecture.rope_theta);
  if (architecture.gguf == "gemma3") {
    double local_theta = positive(config, "rope_local_base_freq", 1e4);
    if (parameters && parameters->has("full_attention")) {
      rope = parameters->object("full_attention");
      if (const auto local = parameters->object("sliding_attention")) {
        local_theta = positive(*local, "rope_theta", local_theta);
        if (const std::string type = local->text("rope_type").value_or("default"); type != "default") {
          local->refuse("rope_type", fmt::format("is '{}', must be 'default'", shown(type)));
        }
      }
    }
    out.add_real("rope.freq_base_swa", local_theta);
  }
  if (rope) theta = positive(*rope, "rope_theta", theta);
  if (!rope) rope = config.object("rope_scaling");
  out.add_real("rope.freq_base", theta);
  out.add("rope.dimension_count", model.head_dim);
  if (rope) add_scaling(*rope, theta, out, model);
}

/// Every p-th layer of Gemma 3 sees all keys, the others a window.
void add_gemma3_windows(const JsonObject& config, Output& out, std::int64_t num_layers) {
  constexpr std::int64_t kUsualPattern = 6;
  out.add("attention.sliding_window", config.require_integer("sliding_window", 1, kMostPositions));
  const auto fits = [&, types = config.texts("layer_types")](std::int64_t pattern) {
    for (std::size_t i = 0; types && i < types->size(); ++i) {
      const bool full = std::int64_t(i + 1) % pattern == 0;
      if ((*types)[i] != (full ? "full_attention" : "sliding_attention")) return false;
    }
    return !types || std::int64_t(types->size()) == num_layers;
  };
  std::int64_t pattern = config.integer("sliding_window_pattern", 1, kMostLayers).value_or(kUsualPattern);
  if (!fits(pattern)) {
    for (pattern = 1; pattern <= num_layers + 1 && !fits(pattern);) ++pattern;
    if (pattern > num_layers + 1)
      config.refuse("layer_types", "must name every layer, and a full one after every so many");
  }
  if (pattern != kUsualPattern) out.add("attention.sliding_window_pattern", pattern);
}

void refuse_unsupported(const JsonObject& config, const Architecture& architecture, const HfModel& model) {
  const std::string activation =
      config.text("hidden_activation")
          .value_or(config.text("hidden_act").value_or(std::string(architecture.activation)));
  if (activation != architecture.activation) {
    config.refuse("hidden_act", fmt::format("is '{}', must be '{}'", shown(activation), architecture.activation));
  }
  for (const char* key : {"quantization_config", "attn_logit_softcapping", "final_logit_softcapping"}) {
    if (config.has(key)) config.refuse(key, "is set, which is not supported");
  }
  if (config.truth("use_bidirectional_attention").value_or(false)) {
    config.refuse("use_bidirectional_attention", "is true, which is not supported");
  }
  if (const double part = config.number("partial_rotary_factor").value_or(1.0); part != 1.0) {
    config.refuse("partial_rotary_factor", fmt::format("is {}, must be 1", part));
  }
  if (const auto scalar = config.number("query_pre_attn_scalar"); scalar && *scalar != double(model.head_dim)) {
    config.refuse("query_pre_attn_scalar",
                  fmt::format("is {}, must be the head dimension {}", *scalar, model.head_dim));
  }
  if (architecture.gguf.starts_with("qwen") && config.truth("use_sliding_window").value_or(false)) {
    config.refuse("use_sliding_window", "is true, which is not supported");
  }
}

}  // namespace

HfModel read_hf_config(const JsonObject& config, GgufMetadataBuilder& metadata) {
  const Architecture& architecture = find_architecture(config);
  HfModel model;
  model.architecture = architecture.gguf;
  model.num_layers = config.require_integer("num_hidden_layers", 1, kMostLayers);
  model.num_q_heads = config.require_integer("num_attention_heads", 1, kMostHeads);
  model.num_kv_heads = config.integer("num_key_value_heads", 1, kMostHeads).value_or(model.num_q_heads);
  model.vocab_size = config.require_integer("vocab_size", 1, kMostPositions - 1);
  model.tied = config.truth("tie_word_embeddings").value_or(architecture.tied);
  const std::int64_t hidden_size = config.require_integer("hidden_size", 1, kLargestSize);
  const auto head_dim = config.integer("head_dim", 1, kLargestHead);
  if (!head_dim && hidden_size % model.num_q_heads != 0) {
    config.refuse("hidden_size",
                  fmt::format("is {}, must be a multiple of num_attention_heads {}", hidden_size, model.num_q_heads));
  }
  model.head_dim = head_dim.value_or(hidden_size / model.num_q_heads);
  if (model.head_dim % 2 != 0) config.refuse("head_dim", fmt::format("is {}, must be even", model.head_dim));
  refuse_unsupported(config, architecture, model);

  metadata.add_string("general.architecture", model.architecture);
  metadata.add_string("general.type", "model");
  Output out(metadata, model.architecture);
  out.add("block_count", model.num_layers);
  out.add("context_length", config.require_integer("max_position_embeddings", 1, kMostPositions));
  out.add("embedding_length", hidden_size);
  out.add("feed_forward_length", config.require_integer("intermediate_size", 1, kLargestSize));
  out.add("vocab_size", model.vocab_size);
  out.add("attention.head_count", model.num_q_heads);
  out.add("attention.head_count_kv", model.num_kv_heads);
  out.add("attention.key_length", model.head_dim);
  out.add("attention.value_length", model.head_dim);
  out.add_real("attention.layer_norm_rms_epsilon", positive(config, "rms_norm_eps", 1e-6));
  add_rope(config, architecture, out, model);
  if (architecture.gguf == "gemma3") {
    add_gemma3_windows(config, out, model.num_layers);
  } else if (architecture.model_type == "mistral") {
    if (const auto window = config.integer("sliding_window", 1, kMostPositions)) {
      out.add("attention.sliding_window", *window);
    }
  }
  return model;
}

}  // namespace ops_transformer::llm
