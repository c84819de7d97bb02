// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "llm/architecture.h"

namespace ops_transformer::llm {
namespace {

// Gemma 3 (Gemma Team, 2025): five local layers to a global one, each kind with its own RoPE; normalised heads; norms
// after attention and FFN as well as before; GeGLU; embeddings scaled by sqrt(hidden_size). Files hold norm weights
// with the 1 of (1 + w) in them.
void read_gemma3(const ConfigKeys& keys, ModelConfig& config) {
  config.rope_style = RopeStyle::half_split;
  config.embedding_scale = std::sqrt(float(config.hidden_size));
  // Files that name no pattern are from when there was but one.
  config.global_every = keys.find("attention.sliding_window_pattern", 1, 1024).value_or(6);
  config.local_rope_theta = keys.positive("rope.freq_base_swa", 10000.0);
  // The 27B model alone divides by the hidden size of a head instead of the key length, and no key says so.
  if (config.num_layers == 62) {
    config.softmax_scale = 1.0f / std::sqrt(float(config.hidden_size) / float(config.num_q_heads));
  }
  keys.require_only("final_logit_softcapping", 0.0);
  keys.require_only("attn_logit_softcapping", 0.0);
}

DecoderWeights load_gemma3(WeightLoader& loader, const ModelConfig& config) {
  DecoderWeights weights = load_decoder(loader, config);
  load_head_norms(loader, config, weights);
  for (std::size_t i = 0; i < weights.layers.size(); ++i) {
    DecoderLayer& layer = weights.layers[i];
    layer.post_attention_norm = loader.vector(block_name(i) + "post_attention_norm.weight", config.hidden_size);
    layer.post_ffn_norm = loader.vector(block_name(i) + "post_ffw_norm.weight", config.hidden_size);
  }
  weights.activation = Activation::gelu_tanh;
  return weights;
}

}  // namespace

const Architecture kGemma3{.name = "gemma3", .read_config = read_gemma3, .load = load_gemma3};

}  // namespace ops_transformer::llm
