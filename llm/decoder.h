// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "llm/decoder_weights.h"
#include "llm/embedding.h"
#include "llm/model.h"
#include "ops_transformer/attention/flash_attention.h"
#include "ops_transformer/kv_cache/rope_kv_write.h"

namespace ops_transformer::llm {

/// The forward pass of every architecture: what they differ in stands in their configs and weights.
class Decoder final : public Model {
 public:
  Decoder(Context& context, ModelFile file, ModelConfig config, const LoadOptions& options);

  void forward(Context& context, KvPool& pool, const Batch& batch, const TensorView& logits) const override;
  std::size_t weight_bytes() const noexcept override { return weights_.bytes(); }

 private:
  /// x += input weights^T; with a norm, of what is added. h is scratch.
  void add_to_residual(Context& context, const StackedLinear& weights, const TensorView& input,
                       const std::vector<float>& post_norm, const TensorView& h, const TensorView& x) const;
  const RopeTable& rope_of(std::int64_t layer) const;
  RopeKvWriteOptions head_norms(const DecoderLayer& layer) const;
  FlashAttentionOptions attention_options(std::int64_t layer) const;

  Embedding embedding_;
  Buffer memory_;  // of the packed weights
  DecoderWeights weights_;
  std::optional<RopeTable> rope_, local_rope_;  // no local one: all layers turn alike
};

}  // namespace ops_transformer::llm
