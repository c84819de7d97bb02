// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "llm/config.h"
#include "ops_transformer/base/context.h"
#include "ops_transformer/base/tensor_view.h"

namespace ops_transformer::llm {

/// The llama architecture on the same kernels without any fusion, as a framework of single operators runs it: separate
/// projections, rotation, activation and additions, each a pass over memory; a contiguous f32 KV cache; attention
/// through the full score matrix. What the fused path is compared with; one sequence, no window, no bias.
class OPS_TRANSFORMER_API UnfusedLlama {
 public:
  /// context_len in [1, the model's]. Throws what load_model throws, InvalidFile for another architecture, a window or
  /// bias, and InvalidArgument.
  static std::unique_ptr<UnfusedLlama> load(Context& context, const std::string& path, std::int64_t context_len);
  virtual ~UnfusedLlama() = default;

  virtual const ModelConfig& config() const noexcept = 0;
  /// Bytes of weights that a decoded token reads.
  virtual std::size_t weight_bytes() const noexcept = 0;
  /// Appends tokens; logits [vocab_size] f32 are those of the last one. Throws InvalidArgument where the context is
  /// full.
  virtual void forward(Context& context, std::span<const std::int32_t> tokens, std::span<float> logits) = 0;
  virtual void truncate(std::int64_t length) noexcept = 0;
};

}  // namespace ops_transformer::llm
