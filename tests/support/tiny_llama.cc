// SPDX-License-Identifier: Apache-2.0
#include "tests/support/tiny_llama.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <random>
#include <vector>

#include "ops_transformer/base/float16.h"
#include "tests/support/gguf_writer.h"

namespace ops_transformer::test {
namespace {

void append_half(std::string& data, Float16 value) { data.append(reinterpret_cast<const char*>(&value.bits), 2); }

// One block of 32 weights in the file's layout (block_q4_0, block_q4_1, block_q8_0), and its real values.
void append_block(DType dtype, std::mt19937_64& engine, std::string& data, std::vector<double>& values) {
  const float size = std::uniform_real_distribution<float>(0.01f, 0.03f)(engine);
  const Float16 scale = to_float16(dtype == DType::q8_0 ? size / 16 : size);
  append_half(data, scale);
  const double d = to_float(scale);
  if (dtype == DType::q8_0) {
    for (int i = 0; i < 32; ++i) {
      const int code = int(engine() % 255) - 127;
      data.push_back(char(code));
      values.push_back(d * code);
    }
    return;
  }
  double low = -8 * d;
  if (dtype == DType::q4_1) {
    const Float16 minimum = to_float16(float(low) + std::normal_distribution<float>(0.0f, 0.01f)(engine));
    append_half(data, minimum);
    low = to_float(minimum);
  }
  std::vector<double> second_half;
  for (int i = 0; i < 16; ++i) {
    const int byte = int(engine() & 255);
    data.push_back(char(byte));
    values.push_back(d * (byte & 15) + low);
    second_half.push_back(d * (byte >> 4) + low);
  }
  values.insert(values.end(), second_half.begin(), second_half.end());
}

}  // namespace

TinyLlama::TinyLlama(const TinyLlamaOptions& options) {
  std::mt19937_64 engine(options.seed);
  std::normal_distribution<float> normal(0.0f, 1.0f);
  const std::string& arch = options.architecture;
  const auto key = [&arch](const char* name) { return arch + "." + name; };
  const bool gemma = arch == "gemma3", head_norms = gemma || arch == "qwen3";
  GgufWriter writer;
  writer.add_string("general.architecture", arch)
      .add_u32(key("block_count"), kLayers)
      .add_u32(key("context_length"), 256)
      .add_u32(key("embedding_length"), kHidden)
      .add_u32(key("feed_forward_length"), kIntermediate)
      .add_u32(key("attention.head_count"), kHeads)
      .add_u32(key("attention.head_count_kv"), kKvHeads)
      .add_u32(key("rope.dimension_count"), options.rotary_dim)
      .add_f32(key("attention.layer_norm_rms_epsilon"), 1e-5f)
      .add_string("tokenizer.ggml.model", "gpt2")
      .add_string("tokenizer.ggml.pre", "default");
  if (options.window) writer.add_u32(key("attention.sliding_window"), *options.window);
  if (options.linear_scaling) {
    writer.add_string(key("rope.scaling.type"), "linear").add_f32(key("rope.scaling.factor"), *options.linear_scaling);
  }
  if (!options.scaling_type.empty()) {
    writer.add_string(key("rope.scaling.type"), options.scaling_type)
        .add_f32(key("rope.scaling.factor"), 4.0f)
        .add_u32(key("rope.scaling.original_context_length"), 16);
  }
  if (gemma) {
    writer.add_f32(key("rope.freq_base"), 1e6f).add_u32(key("attention.sliding_window_pattern"), 2);
  }
  std::vector<std::string> tokens;
  std::vector<std::int32_t> types(kVocabSize, 1);
  for (std::uint32_t i = 0; i < kVocabSize; ++i)
    tokens.push_back(i < 94 ? std::string(1, char('!' + i)) : fmt::format("<{}>", i));
  types[94] = types[95] = 3;
  writer.add_strings("tokenizer.ggml.tokens", tokens)
      .add_array("tokenizer.ggml.token_type", 5, types)
      .add_strings("tokenizer.ggml.merges", {})
      .add_u32("tokenizer.ggml.bos_token_id", 94)
      .add_u32("tokenizer.ggml.eos_token_id", 95);

  const auto add = [&](const std::string& name, std::vector<std::uint64_t> dims, DType dtype, float mean,
                       float deviation) {
    std::uint64_t count = 1;
    for (std::uint64_t dim : dims) count *= dim;
    std::string data;
    std::vector<double>& values = tensors_[name];
    if (is_block_quantised(dtype)) {
      for (std::uint64_t i = 0; i < count; i += 32) append_block(dtype, engine, data, values);
    } else {
      for (std::uint64_t i = 0; i < count; ++i) {
        const float value = mean + deviation * normal(engine);
        if (dtype == DType::bf16) {
          const BFloat16 rounded = to_bfloat16(value);
          data.append(reinterpret_cast<const char*>(&rounded.bits), 2);
          values.push_back(to_float(rounded));
        } else {
          data.append(reinterpret_cast<const char*>(&value), 4);
          values.push_back(value);
        }
      }
    }
    if (options.nan_embedding && name == "token_embd.weight") std::ranges::fill(data, '\xff');
    writer.add_tensor(name, dtype, dims, data);
  };
  const auto matrix = [&](const std::string& name, std::uint64_t rows, std::uint64_t cols) {
    std::vector<std::uint64_t> dims(options.num_dims - 2, 1);
    dims.insert(dims.end(), {rows, cols});
    add(name + ".weight", dims, options.weights, 0.0f, 1.0f / std::sqrt(float(cols)));
    if (options.bias && name.find("attn_") != std::string::npos) add(name + ".bias", {rows}, DType::f32, 0.0f, 0.3f);
  };
  if (options.frequency_factors) add("rope_freqs.weight", {options.rotary_dim / 2}, DType::f32, 4.0f, 0.5f);
  matrix("token_embd", kVocabSize, kHidden);
  if (!options.tied) matrix("output", kVocabSize, kHidden);
  add("output_norm.weight", {kHidden}, DType::f32, 1.0f, 0.1f);
  for (std::uint32_t i = 0; i < kLayers; ++i) {
    const std::string block = "blk." + std::to_string(i) + ".";
    add(block + "attn_norm.weight", {kHidden}, DType::f32, 1.0f, 0.1f);
    matrix(block + "attn_q", kHidden, kHidden);
    matrix(block + "attn_k", kHidden / 2, kHidden);
    matrix(block + "attn_v", kHidden / 2, kHidden);
    matrix(block + "attn_output", kHidden, kHidden);
    for (const char* head : {"attn_q_norm.weight", "attn_k_norm.weight"}) {
      if (head_norms) add(block + head, {kHidden / kHeads}, DType::f32, 1.0f, 0.3f);
    }
    for (const char* post : {"post_attention_norm.weight", "post_ffw_norm.weight"}) {
      if (gemma) add(block + post, {kHidden}, DType::f32, 0.5f, 0.1f);
    }
    add(block + "ffn_norm.weight", {kHidden}, DType::f32, 1.0f, 0.1f);
    matrix(block + "ffn_gate", kIntermediate, kHidden);
    matrix(block + "ffn_up", kIntermediate, kHidden);
    matrix(block + "ffn_down", kHidden, kIntermediate);
  }
  if (!options.extra_tensor.empty()) add(options.extra_tensor, {kIntermediate}, DType::f32, 0.0f, 1.0f);
  char path[] = "/tmp/tiny_llama_XXXXXX";
  const int file = mkstemp(path);
  if (file >= 0) close(file);
  path_ = path;
  std::ofstream(path_, std::ios::binary) << writer.bytes();
}

TinyLlama::~TinyLlama() { std::remove(path_.c_str()); }

}  // namespace ops_transformer::test
