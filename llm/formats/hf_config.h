// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "llm/formats/gguf_metadata.h"
#include "llm/formats/json_file.h"

namespace ops_transformer::llm {

/// What naming and laying out a Transformers model's tensors takes.
struct HfModel {
  std::string architecture;  // GGUF's name
  std::int64_t num_layers = 0;
  std::int64_t num_q_heads = 0;
  std::int64_t num_kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t vocab_size = 0;
  bool tied = false;                       // the output matrix is the embedding
  std::vector<float> frequency_factors{};  // rope_freqs.weight, [head_dim / 2]; empty: none
};

/// Translates a config.json: adds the model's sizes and constants to `metadata` under GGUF's keys. Throws InvalidFile:
/// an unsupported architecture or feature, a key that is missing or out of range.
HfModel read_hf_config(const JsonObject& config, GgufMetadataBuilder& metadata);

}  // namespace ops_transformer::llm
