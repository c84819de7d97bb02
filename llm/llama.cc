// SPDX-License-Identifier: Apache-2.0
#include "llm/llama.h"

#include <fmt/format.h>

#include <numeric>
#include <optional>
#include <vector>

#include "llm/embedding.h"
#include "llm/weight_loader.h"
#include "ops_transformer/attention/flash_attention.h"
#include "ops_transformer/ffn/gated_linear.h"
#include "ops_transformer/kv_cache/rope_kv_write.h"
#include "ops_transformer/norm/rms_norm.h"
#include "ops_transformer/posembedding/rope.h"

namespace ops_transformer::llm {
namespace {

struct Layer {
  std::vector<float> attention_norm;
  StackedLinear qkv;
  StackedLinear attention_output;
  std::vector<float> ffn_norm;
  PackedWeights gate_up;
  StackedLinear down;
};

// The batch's tokens in the pool: their positions and slots. Gone again where keep is not reached, so that a forward
// that throws leaves every sequence as it was.
class Appended {
 public:
  Appended(KvPool& pool, const Batch& batch, std::span<std::int64_t> positions, std::span<std::int64_t> slots,
           std::span<std::int64_t> offsets, std::span<SequenceId> sequences)
      : pool_(pool), slices_(batch.slices) {
    for (const auto& [sequence, count] : slices_) pool.reserve(sequence, count);
    std::int64_t row = 0;
    for (std::size_t s = 0; s < slices_.size(); ++s) {
      const auto [sequence, count] = slices_[s];
      std::iota(positions.begin() + row, positions.begin() + row + count, pool.length(sequence));
      pool.append(sequence, slots.subspan(std::size_t(row), std::size_t(count)));
      sequences[s] = sequence;
      offsets[s] = row;
      row += count;
    }
    offsets[slices_.size()] = row;
  }
  ~Appended() {
    for (const auto& [sequence, count] : slices_) pool_.truncate(sequence, pool_.length(sequence) - count);
  }
  Appended(const Appended&) = delete;
  Appended& operator=(const Appended&) = delete;

  void keep() { slices_ = {}; }

 private:
  KvPool& pool_;
  std::span<const BatchSlice> slices_;
};

class Llama final : public Model {
 public:
  Llama(Context& context, ModelFile file_in, ModelConfig config_in, const LoadOptions& options)
      : Model(std::move(file_in), std::move(config_in), options.arithmetic), embedding_(file()) {
    const ModelConfig& c = config();
    WeightLoader loader(context, file(), options);
    loader.matrix("token_embd.weight", c.vocab_size, c.hidden_size);  // checks it
    rope_ = loader.rope_table(c, RopeStyle::interleaved);
    // The largest matrix first: its file pages are dropped before the others are read, which keeps the peak low.
    output_norm_ = loader.vector("output_norm.weight", c.hidden_size);
    const bool untied = file().find_tensor("output.weight") != nullptr;
    output_ = loader.linear({{untied ? "output" : "token_embd", c.vocab_size}}, c.hidden_size);
    layers_.resize(std::size_t(c.num_layers));
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      const std::string block = fmt::format("blk.{}.", i);
      Layer& layer = layers_[i];
      layer.attention_norm = loader.vector(block + "attn_norm.weight", c.hidden_size);
      layer.qkv = loader.linear(
          {{block + "attn_q", c.q_size()}, {block + "attn_k", c.kv_size()}, {block + "attn_v", c.kv_size()}},
          c.hidden_size);
      layer.attention_output = loader.linear({{block + "attn_output", c.hidden_size}}, c.q_size());
      layer.ffn_norm = loader.vector(block + "ffn_norm.weight", c.hidden_size);
      layer.gate_up = loader.gate_up(block + "ffn_gate", block + "ffn_up", c.intermediate_size, c.hidden_size);
      layer.down = loader.linear({{block + "ffn_down", c.hidden_size}}, c.intermediate_size);
    }
    memory_ = loader.finish();
  }

  std::size_t weight_bytes() const noexcept override {
    std::size_t bytes = output_.bytes();
    for (const Layer& layer : layers_) {
      bytes += layer.qkv.bytes() + layer.attention_output.bytes() + layer.gate_up.bytes() + layer.down.bytes();
    }
    return bytes;
  }

  void forward(Context& context, KvPool& pool, const Batch& batch, const TensorView& logits) const override {
    validate(batch, logits);
    const ModelConfig& c = config();
    const auto num_tokens = std::int64_t(batch.tokens.size());
    CallScope call(context);  // the operators below share its threads; its arena holds the activations
    Arena& arena = call.arena();
    const auto matrix = [&arena](std::int64_t rows, std::int64_t cols) {
      return TensorView(arena.allocate<float>(std::size_t(rows * cols)).data(), DType::f32, {rows, cols});
    };

    const TensorView x = matrix(num_tokens, c.hidden_size), h = matrix(num_tokens, c.hidden_size);
    embedding_.look_up(arena, batch.tokens, x);  // may fail where the file has changed: before the cache does

    auto positions = arena.allocate<std::int64_t>(batch.tokens.size());
    auto slots = arena.allocate<std::int64_t>(batch.tokens.size());
    auto offsets = arena.allocate<std::int64_t>(batch.slices.size() + 1);
    auto sequences = arena.allocate<SequenceId>(batch.slices.size());
    const ConstTensorView position_view(positions.data(), DType::i64, {num_tokens});
    const TensorView qkv = matrix(num_tokens, c.q_size() + 2 * c.kv_size());
    const TensorView attended = matrix(num_tokens, c.q_size());
    const TensorView gated = matrix(num_tokens, c.intermediate_size);
    const auto heads = [&qkv, num_tokens, &c](std::int64_t first, std::int64_t num_heads) {
      return TensorView(qkv.as<float>() + first, DType::f32, {num_tokens, num_heads, c.head_dim},
                        {qkv.stride(0), c.head_dim, 1});
    };
    const TensorView q = heads(0, c.num_q_heads), k = heads(c.q_size(), c.num_kv_heads),
                     v = heads(c.q_size() + c.kv_size(), c.num_kv_heads);
    const TensorView attended_heads(attended.data(), DType::f32, {num_tokens, c.num_q_heads, c.head_dim});

    Appended appended(pool, batch, positions, slots, offsets, sequences);
    PagedKvView cache = pool.view(0, sequences);
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      const Layer& layer = layers_[i];
      rms_norm(context, x, vector_view(layer.attention_norm), h, {.eps = c.norm_eps});
      layer.qkv.run(context, h, qkv, {.arithmetic = arithmetic()});
      pool.select_layer(cache, std::int64_t(i));
      rope_kv_write(context, q, k, v, position_view, *rope_, slots, pool.pages(std::int64_t(i)));
      flash_attention_paged(context, q, cache, attended_heads, offsets, attention_options());
      layer.attention_output.run(context, attended, x, {.residual = x, .arithmetic = arithmetic()});
      rms_norm(context, x, vector_view(layer.ffn_norm), h, {.eps = c.norm_eps});
      gated_linear(context, h, layer.gate_up, gated, {.activation = Activation::silu, .arithmetic = arithmetic()});
      layer.down.run(context, gated, x, {.residual = x, .arithmetic = arithmetic()});
    }

    const auto num_rows = std::int64_t(batch.logit_rows.size());
    if (num_rows == 0) return appended.keep();
    const TensorView last = matrix(num_rows, c.hidden_size);
    for (std::int64_t i = 0; i < num_rows; ++i) {
      const float* row = x.as<float>() + batch.logit_rows[std::size_t(i)] * c.hidden_size;
      std::copy_n(row, c.hidden_size, last.as<float>() + i * c.hidden_size);
    }
    rms_norm(context, last, vector_view(output_norm_), last, {.eps = c.norm_eps});
    output_.run(context, last, logits, {.arithmetic = arithmetic()});
    appended.keep();
  }

 private:
  FlashAttentionOptions attention_options() const {
    FlashAttentionOptions options;
    options.mask = Mask::causal;
    if (config().window) options.window = *config().window;
    return options;
  }

  Embedding embedding_;
  std::optional<RopeTable> rope_;
  std::vector<Layer> layers_;
  std::vector<float> output_norm_;
  StackedLinear output_;
  Buffer memory_;
};

}  // namespace

std::unique_ptr<Model> load_llama(Context& context, ModelFile file, ModelConfig config, const LoadOptions& options) {
  return std::make_unique<Llama>(context, std::move(file), std::move(config), options);
}

}  // namespace ops_transformer::llm
