// SPDX-License-Identifier: Apache-2.0
#include "llm/architecture.h"

namespace ops_transformer::llm {
namespace {

// Llama (Touvron et al., 2023), Mistral (Jiang et al., 2023), SmolLM: pre-norm blocks of grouped-query attention and
// SwiGLU. GGUF has the rows of q and k permuted, so that neighbours turn together. Mistral adds a window, Llama 3 the
// factors of rope_freqs.weight.
void read_llama(const ConfigKeys&, ModelConfig& config) { config.rope_style = RopeStyle::interleaved; }

}  // namespace

const Architecture kLlama{.name = "llama", .read_config = read_llama, .load = load_decoder};

}  // namespace ops_transformer::llm
