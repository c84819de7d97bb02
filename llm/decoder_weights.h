// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "llm/weight_loader.h"
#include "ops_transformer/gemm/activation.h"

namespace ops_transformer::llm {

/// One block: x += attention(norm(x)), then x += ffn(norm(x)), each sum normalised before it is added where a post norm
/// is set. Empty vectors: none.
struct DecoderLayer {
  std::vector<float> attention_norm;  // [hidden_size]
  StackedLinear qkv;
  std::vector<float> q_norm, k_norm;  // [head_dim], of every head before it is rotated
  StackedLinear attention_output;
  std::vector<float> post_attention_norm;  // [hidden_size]
  std::vector<float> ffn_norm;             // [hidden_size]
  PackedWeights gate_up;
  StackedLinear down;
  std::vector<float> post_ffn_norm;  // [hidden_size]
};

struct DecoderWeights {
  std::vector<DecoderLayer> layers;
  std::vector<float> output_norm;  // [hidden_size]
  StackedLinear output;            // the embedding, or a matrix of its own
  Activation activation = Activation::silu;

  /// Bytes of matrices.
  std::size_t bytes() const;
};

/// "blk.7."
std::string block_name(std::size_t layer);

/// What every architecture has, under the names that GGUF gives all of them: the embedding (tied or not), attention
/// (biases where the file has them), the gated FFN and the norms before each. Throws InvalidFile.
DecoderWeights load_decoder(WeightLoader& loader, const ModelConfig& config);

/// Adds q_norm and k_norm.
void load_head_norms(WeightLoader& loader, const ModelConfig& config, DecoderWeights& weights);

}  // namespace ops_transformer::llm
