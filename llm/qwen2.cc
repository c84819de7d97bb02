// SPDX-License-Identifier: Apache-2.0
#include "llm/architecture.h"

namespace ops_transformer::llm {
namespace {

// Qwen 2 and 2.5 (Yang et al., 2024): llama's blocks with biases on q, k and v, and pairs of halves for RoPE.
void read_qwen2(const ConfigKeys&, ModelConfig& config) { config.rope_style = RopeStyle::half_split; }

}  // namespace

const Architecture kQwen2{.name = "qwen2", .read_config = read_qwen2, .load = load_decoder};

}  // namespace ops_transformer::llm
