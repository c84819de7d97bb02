// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "llm/model.h"

namespace ops_transformer::llm {

/// The `llama` architecture of GGUF (Touvron et al., 2023; SmolLM, Llama, Mistral): pre-norm blocks of grouped-query
/// attention with interleaved RoPE and a SwiGLU FFN, optionally a sliding window, output tied to the embedding or not.
std::unique_ptr<Model> load_llama(Context& context, ModelFile file, ModelConfig config, const LoadOptions& options);

}  // namespace ops_transformer::llm
