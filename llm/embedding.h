// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "llm/formats/model_file.h"
#include "ops_transformer/base/memory.h"
#include "ops_transformer/base/tensor_view.h"

namespace ops_transformer::llm {

/// A model's token embedding, left in its file: rows are read when their tokens come. Mapped instead, a page touched
/// for each would keep up to 30 MB of SmolLM2's table resident.
class Embedding {
 public:
  /// The file must outlive the object. Throws InvalidFile where it has no such tensor.
  explicit Embedding(const ModelFile& file) : file_(file), table_(file.tensor("token_embd.weight")) {}

  /// x [tokens, hidden] f32, contiguous: the tokens' rows times `scale`. Tokens must lie in the vocabulary. Throws
  /// SystemFailure where the file can no longer be read.
  void look_up(Arena& arena, std::span<const std::int32_t> tokens, const TensorView& x, float scale = 1.0f) const;

 private:
  const ModelFile& file_;
  const ModelTensor& table_;
};

}  // namespace ops_transformer::llm
