// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "llm/llama_reference.h"
#include "ops_transformer/base/dtype.h"

namespace ops_transformer::test {

struct TinyLlamaOptions {
  std::string architecture = "llama";  // or qwen2, qwen3, gemma3: with the tensors and keys that tell it from llama
  DType weights = DType::f32;          // f32, bf16, q4_0, q4_1 or q8_0
  bool tied = true;
  bool bias = false;
  std::optional<std::uint32_t> window{};
  std::optional<float> linear_scaling{};
  std::string scaling_type{};  // ntk, llama3 or yarn: by a factor of 4 from 16 tokens
  bool frequency_factors = false;
  std::uint32_t rotary_dim = 16;
  std::uint64_t seed = 1;
  std::size_t num_dims = 2;  // of matrices; those past the second are 1
  std::string extra_tensor{};
  bool nan_embedding = false;  // f32 weights only
};

/// A model of two layers with random weights: a file that load_model reads (removed with the object) and the same
/// weights as real numbers for the reference.
class TinyLlama {
 public:
  explicit TinyLlama(const TinyLlamaOptions& options = {});
  ~TinyLlama();
  TinyLlama(const TinyLlama&) = delete;
  TinyLlama& operator=(const TinyLlama&) = delete;

  const std::string& path() const { return path_; }
  const llm::reference::Tensors& tensors() const { return tensors_; }

  static constexpr std::uint32_t kVocabSize = 96, kHidden = 64, kIntermediate = 96, kLayers = 2, kHeads = 4,
                                 kKvHeads = 2;

 private:
  std::string path_;
  llm::reference::Tensors tensors_;
};

}  // namespace ops_transformer::test
