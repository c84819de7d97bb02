// SPDX-License-Identifier: Apache-2.0
#include "llm/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "llm/decoder.h"
#include "ops_transformer/base/validate.h"

namespace ops_transformer::llm {
namespace {

constexpr std::int64_t kPageSize = 64;
// Far above any use, and small enough that no size computed from them overflows.
constexpr std::int64_t kMostCachedTokens = std::int64_t{1} << 36, kMostSequences = std::int64_t{1} << 20;

}  // namespace

Model::Model(ModelFile file, ModelConfig config, Arithmetic arithmetic)
    : file_(std::move(file)),
      config_(std::move(config)),
      tokenizer_(Tokenizer::from_gguf(file_)),
      arithmetic_(arithmetic) {
  if (std::int64_t(tokenizer_.vocab_size()) != config_.vocab_size) {
    throw InvalidFile(fmt::format("tokenizer.ggml.tokens has {} entries, but token_embd.weight has {} rows",
                                  tokenizer_.vocab_size(), config_.vocab_size));
  }
}

KvPool Model::make_kv_pool(std::int64_t num_tokens, std::int64_t num_sequences) const {
  for (const auto& [name, value, most] : {std::tuple{"num_tokens", num_tokens, kMostCachedTokens},
                                          std::tuple{"num_sequences", num_sequences, kMostSequences}}) {
    if (value < 1 || value > most) {
      invalid("make_kv_pool", fmt::format("{} is {}, must be from 1 to {}", name, value, most));
    }
  }
  try {
    return KvPool(kv_pool_options(num_tokens, num_sequences));
  } catch (const std::bad_alloc&) {
    throw ResourceExhausted(fmt::format("a cache of {} tokens takes {} bytes of address space, which can't be had",
                                        num_tokens, kv_bytes_per_token() * std::size_t(num_tokens)));
  }
}

KvPoolOptions Model::kv_pool_options(std::int64_t num_tokens, std::int64_t num_sequences) const {
  return {.num_layers = config_.num_layers,
          .num_kv_heads = config_.num_kv_heads,
          .head_dim = config_.head_dim,
          .page_size = kPageSize,
          .num_pages = (num_tokens + kPageSize - 1) / kPageSize + num_sequences,
          .dtype = kv_dtype()};
}

std::size_t Model::kv_bytes_per_token() const noexcept {
  return std::size_t(config_.num_layers * 2 * config_.kv_size()) * element_bytes(kv_dtype());
}

void Model::validate(const Batch& batch, const TensorView& logits) const {
  const auto total = std::int64_t(batch.tokens.size());
  std::int64_t left = total;
  std::vector<SequenceId> sequences;
  for (const BatchSlice& slice : batch.slices) {
    if (slice.num_tokens < 1 || slice.num_tokens > left) {
      invalid("forward", fmt::format("a slice has {} tokens, must be from 1 to the {} that are left of the batch's {}",
                                     slice.num_tokens, left, total));
    }
    left -= slice.num_tokens;
    sequences.push_back(slice.sequence);
  }
  if (left != 0) invalid("forward", fmt::format("slices hold {} tokens, but the batch has {}", total - left, total));
  std::ranges::sort(sequences);
  if (const auto twice = std::ranges::adjacent_find(sequences); twice != sequences.end()) {
    invalid("forward", fmt::format("sequence {} has two slices, must have one", *twice));
  }
  for (std::int32_t token : batch.tokens) {
    if (token < 0 || token >= config_.vocab_size) {
      invalid("forward", fmt::format("token {} is outside the vocabulary of {}", token, config_.vocab_size));
    }
  }
  for (std::int64_t row : batch.logit_rows) {
    if (row < 0 || row >= total) invalid("forward", fmt::format("logit row {} is outside the batch of {}", row, total));
  }
  check_shape("forward", "logits", logits, {std::int64_t(batch.logit_rows.size()), config_.vocab_size});
  check_dtype("forward", "logits", logits, {DType::f32});
  check_rows("forward", "logits", logits);
}

std::unique_ptr<Model> load_model(Context& context, const std::string& path, const LoadOptions& options) {
  ModelFile file = ModelFile::open(path);
  ModelConfig config = read_config(file);
  return std::make_unique<Decoder>(context, std::move(file), std::move(config), options);
}

}  // namespace ops_transformer::llm
