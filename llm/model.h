// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "llm/config.h"
#include "llm/tokenizer/tokenizer.h"
#include "ops_transformer/base/context.h"
#include "ops_transformer/gemm/linear.h"
#include "ops_transformer/kv_cache/kv_pool.h"

namespace ops_transformer::llm {

/// New tokens of one sequence in a batch.
struct BatchSlice {
  SequenceId sequence;
  std::int64_t num_tokens;
};

/// Tokens of one or more sequences, packed one after another.
struct Batch {
  std::span<const std::int32_t> tokens;
  std::span<const BatchSlice> slices;          // their num_tokens add up to tokens.size()
  std::span<const std::int64_t> logit_rows{};  // indices into tokens whose logits are wanted
};

struct LoadOptions {
  /// exact: f32 arithmetic on the file's dequantised weights and an f32 cache, for comparison; fast: the weights' own
  /// dot products and a bf16 cache.
  Arithmetic arithmetic = Arithmetic::fast;
  /// Called with (bytes of weights packed, bytes of the file).
  std::function<void(std::size_t, std::size_t)> progress{};
};

/// A decoder-only language model whose layers run on the library's operators. Immutable after loading.
class OPS_TRANSFORMER_API Model {
 public:
  virtual ~Model() = default;

  const ModelConfig& config() const noexcept { return config_; }
  const Tokenizer& tokenizer() const noexcept { return tokenizer_; }
  const ModelFile& file() const noexcept { return file_; }
  Arithmetic arithmetic() const noexcept { return arithmetic_; }

  /// Appends the batch's tokens to their sequences in `pool` and writes the wanted logits.
  /// logits [batch.logit_rows.size(), vocab_size] f32
  /// Throws InvalidArgument (a token outside the vocabulary, slices that don't add up or share a sequence, a pool of
  /// another shape) or ResourceExhausted (the pool is full). Whatever it throws, no sequence has changed.
  virtual void forward(Context& context, KvPool& pool, const Batch& batch, const TensorView& logits) const = 0;

  /// A cache for `num_tokens` tokens in `num_sequences` sequences of any lengths. Throws InvalidArgument and, where the
  /// process may not have that much address space, ResourceExhausted.
  KvPool make_kv_pool(std::int64_t num_tokens, std::int64_t num_sequences = 1) const;
  /// Bytes of such a cache for one token.
  std::size_t kv_bytes_per_token() const noexcept;
  /// Bytes of weights that a decoded token reads.
  virtual std::size_t weight_bytes() const noexcept = 0;

 protected:
  Model(ModelFile file, ModelConfig config, Arithmetic arithmetic);
  /// Throws what forward promises.
  void validate(const Batch& batch, const TensorView& logits) const;
  KvPoolOptions kv_pool_options(std::int64_t num_tokens, std::int64_t num_sequences) const;
  DType kv_dtype() const noexcept { return arithmetic_ == Arithmetic::exact ? DType::f32 : DType::bf16; }

 private:
  ModelFile file_;
  ModelConfig config_;
  Tokenizer tokenizer_;
  Arithmetic arithmetic_;
};

/// Loads a model file (ModelFile::open). Throws InvalidFile or SystemFailure with what is wrong and where.
OPS_TRANSFORMER_API std::unique_ptr<Model> load_model(Context& context, const std::string& path,
                                                      const LoadOptions& options = {});

}  // namespace ops_transformer::llm
