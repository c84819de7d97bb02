// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "llm/model.h"
#include "ops_transformer/base/memory.h"
#include "ops_transformer/gemm/packed_weights.h"
#include "ops_transformer/posembedding/rope.h"

namespace ops_transformer::llm {

/// Weight matrices that share their input and whose outputs lie side by side (query, key, value). Neighbours of one
/// type are one matmul.
class StackedLinear {
 public:
  void run(Context& context, const ConstTensorView& x, const TensorView& out, const LinearOptions& options = {}) const;
  std::size_t bytes() const;

 private:
  friend class WeightLoader;
  std::vector<PackedWeights> groups_;
  std::vector<float> bias_;  // empty: none
};

inline ConstTensorView vector_view(const std::vector<float>& values) {
  return {values.data(), DType::f32, {std::int64_t(values.size())}};
}

struct NamedRows {
  std::string tensor;
  std::int64_t rows;
};

/// Packs the weight matrices of a file into one block of memory and drops each tensor's file pages once it is packed,
/// so that peak memory stays near the size of the weights. Shapes are checked against what the architecture expects.
/// Every function throws InvalidFile for a tensor that is missing or not as expected.
class WeightLoader {
 public:
  WeightLoader(Context& context, const ModelFile& file, const LoadOptions& options);

  /// A matrix that is read where it lies.
  const ModelTensor& matrix(const std::string& name, std::int64_t rows, std::int64_t cols);
  /// "<prefix>.weight" [rows, cols] of each part, stacked along rows; "<prefix>.bias" [rows] where the file has it.
  StackedLinear linear(const std::vector<NamedRows>& parts, std::int64_t cols);
  PackedWeights gate_up(const std::string& gate, const std::string& up, std::int64_t rows, std::int64_t cols);
  /// A vector of f32 (norm weights).
  std::vector<float> vector(const std::string& name, std::int64_t size);

  bool has(const std::string& name) const { return file_.find_tensor(name) != nullptr; }

  /// RoPE angles of the model, with the frequency factors of rope_freqs.weight where the file has them (Llama 3).
  RopeTable rope_table(const ModelConfig& config);
  /// Those of its local layers, which config.local_rope_theta must have: neither scaled nor divided.
  RopeTable local_rope_table(const ModelConfig& config);

  /// Call it last. What the packed weights lie in; the model keeps it. Throws InvalidFile where the file has a tensor
  /// that was not used: the model would be another one without it.
  Buffer finish();

 private:
  const ModelTensor& tensor(const std::string& name, std::int64_t rows, std::int64_t cols);
  ConstTensorView view(const ModelTensor& tensor) const;
  std::span<std::byte> take(DType dtype, std::int64_t rows, std::int64_t cols);
  void finished(const ModelTensor& tensor);

  Context& context_;
  const ModelFile& file_;
  const LoadOptions& options_;
  Buffer memory_;
  std::vector<bool> used_;  // by index of the file's tensor
  std::size_t taken_ = 0;
  std::size_t bytes_done_ = 0;
};

}  // namespace ops_transformer::llm
