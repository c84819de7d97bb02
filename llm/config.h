// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "llm/formats/model_file.h"
#include "ops_transformer/posembedding/rope.h"

namespace ops_transformer::llm {

/// The most that a model file may ask for, whatever its format.
inline constexpr std::int64_t kMostLayers = 1024, kMostHeads = 65536, kLargestHead = 768;
inline constexpr std::int64_t kLargestSize = std::int64_t{1} << 24, kMostPositions = std::int64_t{1} << 31;

/// Sizes and constants of a decoder-only transformer, read from a model file and checked against its tensors.
struct ModelConfig {
  std::string architecture;
  std::string name;
  std::int64_t num_layers = 0;
  std::int64_t hidden_size = 0;
  std::int64_t intermediate_size = 0;
  std::int64_t num_q_heads = 0;
  std::int64_t num_kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t rotary_dim = 0;
  std::int64_t context_len = 0;  // positions that the model was trained for
  std::int64_t vocab_size = 0;   // rows of the embedding
  float norm_eps = 0;
  float embedding_scale = 1.0f;
  std::optional<float> softmax_scale{};  // unset: 1 / sqrt(head_dim)

  std::optional<std::int64_t> window{};  // keys visible to a query of a local layer, itself included
  std::int64_t global_every = 0;         // with a window: every how many layers one sees all keys; 0: all are local

  RopeStyle rope_style = RopeStyle::interleaved;
  double rope_theta = 10000.0;
  double position_scale = 1.0;  // linear RoPE scaling: positions are divided by it
  RopeScaling rope_scaling{};
  std::optional<double> local_rope_theta{};  // local layers turn by it, unscaled; unset: as all layers

  std::int64_t q_size() const { return num_q_heads * head_dim; }
  std::int64_t kv_size() const { return num_kv_heads * head_dim; }
  bool is_local(std::int64_t layer) const { return window && (global_every == 0 || (layer + 1) % global_every != 0); }
};

/// Throws InvalidFile: a key is missing or out of range, the architecture or a feature that the file asks for is not
/// supported (the message lists what is).
OPS_TRANSFORMER_API ModelConfig read_config(const ModelFile& file);

}  // namespace ops_transformer::llm
