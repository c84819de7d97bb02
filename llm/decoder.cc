// SPDX-License-Identifier: Apache-2.0
#include "llm/decoder.h"

#include <algorithm>
#include <numeric>

#include "llm/architecture.h"
#include "ops_transformer/ffn/gated_linear.h"
#include "ops_transformer/norm/rms_norm.h"

namespace ops_transformer::llm {
namespace {

// The batch's tokens in the pool: their positions and slots. Gone again where keep is not reached, so that a forward
// that throws leaves every sequence as it was.
class Appended {
 public:
  Appended(Arena& arena, KvPool& pool, const Batch& batch)
      : pool_(pool),
        slices_(batch.slices),
        positions_(arena.allocate<std::int64_t>(batch.tokens.size())),
        slots_(arena.allocate<std::int64_t>(batch.tokens.size())),
        offsets_(arena.allocate<std::int64_t>(batch.slices.size() + 1)),
        sequences_(arena.allocate<SequenceId>(batch.slices.size())) {
    for (const auto& [sequence, count] : slices_) pool.reserve(sequence, count);
    std::int64_t row = 0;
    for (std::size_t s = 0; s < slices_.size(); ++s) {
      const auto [sequence, count] = slices_[s];
      std::iota(positions_.begin() + row, positions_.begin() + row + count, pool.length(sequence));
      pool.append(sequence, slots_.subspan(std::size_t(row), std::size_t(count)));
      sequences_[s] = sequence;
      offsets_[s] = row;
      row += count;
    }
    offsets_[slices_.size()] = row;
  }
  ~Appended() {
    for (const auto& [sequence, count] : slices_) pool_.truncate(sequence, pool_.length(sequence) - count);
  }
  Appended(const Appended&) = delete;
  Appended& operator=(const Appended&) = delete;

  void keep() { slices_ = {}; }

  ConstTensorView positions() const { return {positions_.data(), DType::i64, {std::int64_t(positions_.size())}}; }
  std::span<const std::int64_t> slots() const { return slots_; }
  std::span<const std::int64_t> offsets() const { return offsets_; }  // of each sequence's rows
  std::span<const SequenceId> sequences() const { return sequences_; }

 private:
  KvPool& pool_;
  std::span<const BatchSlice> slices_;
  std::span<std::int64_t> positions_, slots_, offsets_;
  std::span<SequenceId> sequences_;
};

TensorView matrix(Arena& arena, std::int64_t rows, std::int64_t cols) {
  return {arena.allocate<float>(std::size_t(rows * cols)).data(), DType::f32, {rows, cols}};
}

}  // namespace

Decoder::Decoder(Context& context, ModelFile file_in, ModelConfig config_in, const LoadOptions& options)
    : Model(std::move(file_in), std::move(config_in), options.arithmetic), embedding_(file()) {
  const ModelConfig& c = config();
  WeightLoader loader(context, file(), options);
  rope_ = loader.rope_table(c);
  if (c.local_rope_theta) local_rope_ = loader.local_rope_table(c);
  weights_ = find_architecture(c.architecture).load(loader, c);
  memory_ = loader.finish();
}

void Decoder::forward(Context& context, KvPool& pool, const Batch& batch, const TensorView& logits) const {
  validate(batch, logits);
  const ModelConfig& c = config();
  const auto tokens = std::int64_t(batch.tokens.size());
  CallScope call(context);  // the operators below share its threads; its arena holds the activations
  Arena& arena = call.arena();
  // x is the residual stream; h what was normalised from it, or what is to be normalised and added to it.
  const TensorView x = matrix(arena, tokens, c.hidden_size), h = matrix(arena, tokens, c.hidden_size);
  const TensorView qkv = matrix(arena, tokens, c.q_size() + 2 * c.kv_size());
  const TensorView attended = matrix(arena, tokens, c.q_size());
  const TensorView gated = matrix(arena, tokens, c.intermediate_size);
  const auto heads = [&c](const TensorView& rows, std::int64_t first, std::int64_t num_heads) {
    return TensorView(rows.as<float>() + first, DType::f32, {rows.size(0), num_heads, c.head_dim},
                      {rows.stride(0), c.head_dim, 1});
  };
  const TensorView q = heads(qkv, 0, c.num_q_heads), k = heads(qkv, c.q_size(), c.num_kv_heads),
                   v = heads(qkv, c.q_size() + c.kv_size(), c.num_kv_heads);
  const TensorView attended_heads = heads(attended, 0, c.num_q_heads);

  // May fail where the file has changed: before the cache does.
  embedding_.look_up(arena, batch.tokens, x, c.embedding_scale);
  Appended appended(arena, pool, batch);
  PagedKvView cache = pool.view(0, appended.sequences());
  for (std::int64_t i = 0; i < c.num_layers; ++i) {
    const DecoderLayer& layer = weights_.layers[std::size_t(i)];
    rms_norm(context, x, vector_view(layer.attention_norm), h, {.eps = c.norm_eps});
    layer.qkv.run(context, h, qkv, {.arithmetic = arithmetic()});
    pool.select_layer(cache, i);
    rope_kv_write(context, q, k, v, appended.positions(), rope_of(i), appended.slots(), pool.pages(i),
                  head_norms(layer));
    flash_attention_paged(context, q, cache, attended_heads, appended.offsets(), attention_options(i));
    add_to_residual(context, layer.attention_output, attended, layer.post_attention_norm, h, x);

    rms_norm(context, x, vector_view(layer.ffn_norm), h, {.eps = c.norm_eps});
    gated_linear(context, h, layer.gate_up, gated, {.activation = weights_.activation, .arithmetic = arithmetic()});
    add_to_residual(context, layer.down, gated, layer.post_ffn_norm, h, x);
  }

  const auto num_rows = std::int64_t(batch.logit_rows.size());
  if (num_rows > 0) {
    const TensorView last = matrix(arena, num_rows, c.hidden_size);
    for (std::int64_t i = 0; i < num_rows; ++i) {
      const float* row = x.as<float>() + batch.logit_rows[std::size_t(i)] * c.hidden_size;
      std::copy_n(row, c.hidden_size, last.as<float>() + i * c.hidden_size);
    }
    rms_norm(context, last, vector_view(weights_.output_norm), last, {.eps = c.norm_eps});
    weights_.output.run(context, last, logits, {.arithmetic = arithmetic()});
  }
  appended.keep();
}

void Decoder::add_to_residual(Context& context, const StackedLinear& weights, const TensorView& input,
                              const std::vector<float>& post_norm, const TensorView& h, const TensorView& x) const {
  if (post_norm.empty()) {
    weights.run(context, input, x, {.residual = x, .arithmetic = arithmetic()});
  } else {
    weights.run(context, input, h, {.arithmetic = arithmetic()});
    rms_norm(context, h, vector_view(post_norm), x, {.eps = config().norm_eps, .added = x});
  }
}

const RopeTable& Decoder::rope_of(std::int64_t layer) const {
  return local_rope_ && config().is_local(layer) ? *local_rope_ : *rope_;
}

RopeKvWriteOptions Decoder::head_norms(const DecoderLayer& layer) const {
  RopeKvWriteOptions options{.norm_eps = config().norm_eps};
  if (!layer.q_norm.empty()) options.q_norm = vector_view(layer.q_norm);
  if (!layer.k_norm.empty()) options.k_norm = vector_view(layer.k_norm);
  return options;
}

FlashAttentionOptions Decoder::attention_options(std::int64_t layer) const {
  FlashAttentionOptions options{.mask = Mask::causal, .softmax_scale = config().softmax_scale};
  if (config().is_local(layer)) options.window = *config().window;
  return options;
}

}  // namespace ops_transformer::llm
