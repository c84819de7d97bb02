// SPDX-License-Identifier: Apache-2.0
#include "llm/architecture.h"

namespace ops_transformer::llm {
namespace {

// Qwen 3 (Yang et al., 2025): no biases; every head of q and k is normalised before it is rotated.
void read_qwen3(const ConfigKeys&, ModelConfig& config) { config.rope_style = RopeStyle::half_split; }

DecoderWeights load_qwen3(WeightLoader& loader, const ModelConfig& config) {
  DecoderWeights weights = load_decoder(loader, config);
  load_head_norms(loader, config, weights);
  return weights;
}

}  // namespace

const Architecture kQwen3{.name = "qwen3", .read_config = read_qwen3, .load = load_qwen3};

}  // namespace ops_transformer::llm
