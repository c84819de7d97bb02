// SPDX-License-Identifier: Apache-2.0
#include "llm/decoder_weights.h"

#include <fmt/format.h>

namespace ops_transformer::llm {

std::size_t DecoderWeights::bytes() const {
  std::size_t bytes = output.bytes();
  for (const DecoderLayer& layer : layers) {
    bytes += layer.qkv.bytes() + layer.attention_output.bytes() + layer.gate_up.bytes() + layer.down.bytes();
  }
  return bytes;
}

std::string block_name(std::size_t layer) { return fmt::format("blk.{}.", layer); }

DecoderWeights load_decoder(WeightLoader& loader, const ModelConfig& c) {
  DecoderWeights weights;
  loader.matrix("token_embd.weight", c.vocab_size, c.hidden_size);  // checks it
  // The largest matrix first: its file pages are dropped before the others are read, which keeps the peak low.
  weights.output_norm = loader.vector("output_norm.weight", c.hidden_size);
  weights.output =
      loader.linear({{loader.has("output.weight") ? "output" : "token_embd", c.vocab_size}}, c.hidden_size);
  for (std::size_t i = 0; i < std::size_t(c.num_layers); ++i) {
    const std::string block = block_name(i);
    DecoderLayer layer;
    layer.attention_norm = loader.vector(block + "attn_norm.weight", c.hidden_size);
    layer.qkv = loader.linear(
        {{block + "attn_q", c.q_size()}, {block + "attn_k", c.kv_size()}, {block + "attn_v", c.kv_size()}},
        c.hidden_size);
    layer.attention_output = loader.linear({{block + "attn_output", c.hidden_size}}, c.q_size());
    layer.ffn_norm = loader.vector(block + "ffn_norm.weight", c.hidden_size);
    layer.gate_up = loader.gate_up(block + "ffn_gate", block + "ffn_up", c.intermediate_size, c.hidden_size);
    layer.down = loader.linear({{block + "ffn_down", c.hidden_size}}, c.intermediate_size);
    weights.layers.push_back(std::move(layer));
  }
  return weights;
}

void load_head_norms(WeightLoader& loader, const ModelConfig& c, DecoderWeights& weights) {
  for (std::size_t i = 0; i < weights.layers.size(); ++i) {
    weights.layers[i].q_norm = loader.vector(block_name(i) + "attn_q_norm.weight", c.head_dim);
    weights.layers[i].k_norm = loader.vector(block_name(i) + "attn_k_norm.weight", c.head_dim);
  }
}

}  // namespace ops_transformer::llm
