// SPDX-License-Identifier: Apache-2.0
#include "llm/llama_unfused.h"

#include <fmt/format.h>

#include <cmath>
#include <numeric>
#include <optional>
#include <vector>

#include "llm/embedding.h"
#include "llm/weight_loader.h"
#include "ops_transformer/attention/causal_softmax.h"
#include "ops_transformer/base/validate.h"
#include "ops_transformer/norm/rms_norm.h"
#include "ops_transformer/posembedding/rope.h"

namespace ops_transformer::llm {
namespace {

struct Layer {
  std::vector<float> attention_norm, ffn_norm;
  StackedLinear q, k, v, attention_output, gate, up, down;
  Buffer keys;    // [num_kv_heads, context_len, head_dim] f32
  Buffer values;  // [num_kv_heads, head_dim, context_len] f32: transposed, so that p v^T is a linear layer too
};

class Unfused final : public UnfusedLlama {
 public:
  Unfused(Context& context, const std::string& path, std::int64_t context_len)
      : file_(ModelFile::open(path)), config_(read_config(file_)), embedding_(file_), context_len_(context_len) {
    if (context_len < 1 || context_len > config_.context_len) {
      invalid("UnfusedLlama",
              fmt::format("context_len is {}, must be from 1 to {}, the model's", context_len, config_.context_len));
    }
    if (config_.architecture != "llama" || config_.window || file_.find_tensor("blk.0.attn_q.bias")) {
      throw InvalidFile("the unfused comparison has the llama architecture alone, without a sliding window or biases");
    }
    const ModelConfig& c = config_;
    const LoadOptions options;
    WeightLoader loader(context, file_, options);
    loader.matrix("token_embd.weight", c.vocab_size, c.hidden_size);  // checks it
    rope_ = loader.rope_table(c);
    // The largest matrix first, as in Llama: the peak must differ by what fusion saves alone.
    output_norm_ = loader.vector("output_norm.weight", c.hidden_size);
    output_ =
        loader.linear({{file_.find_tensor("output.weight") ? "output" : "token_embd", c.vocab_size}}, c.hidden_size);
    layers_.resize(std::size_t(c.num_layers));
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      const std::string block = fmt::format("blk.{}.", i);
      const auto matrix = [&](const char* name, std::int64_t rows, std::int64_t cols) {
        return loader.linear({{block + name, rows}}, cols);
      };
      Layer& layer = layers_[i];
      layer.attention_norm = loader.vector(block + "attn_norm.weight", c.hidden_size);
      layer.q = matrix("attn_q", c.q_size(), c.hidden_size);
      layer.k = matrix("attn_k", c.kv_size(), c.hidden_size);
      layer.v = matrix("attn_v", c.kv_size(), c.hidden_size);
      layer.attention_output = matrix("attn_output", c.hidden_size, c.q_size());
      layer.ffn_norm = loader.vector(block + "ffn_norm.weight", c.hidden_size);
      layer.gate = matrix("ffn_gate", c.intermediate_size, c.hidden_size);
      layer.up = matrix("ffn_up", c.intermediate_size, c.hidden_size);
      layer.down = matrix("ffn_down", c.hidden_size, c.intermediate_size);
      layer.keys = Buffer(std::size_t(c.kv_size() * context_len) * sizeof(float));
      layer.values = Buffer(std::size_t(c.kv_size() * context_len) * sizeof(float));
    }
    memory_ = loader.finish();
  }

  const ModelConfig& config() const noexcept override { return config_; }
  std::size_t weight_bytes() const noexcept override {
    std::size_t bytes = output_.bytes();
    for (const Layer& layer : layers_) {
      for (const StackedLinear* linear :
           {&layer.q, &layer.k, &layer.v, &layer.attention_output, &layer.gate, &layer.up, &layer.down}) {
        bytes += linear->bytes();
      }
    }
    return bytes;
  }
  void truncate(std::int64_t length) noexcept override { length_ = std::min(length_, length); }

  void forward(Context& context, std::span<const std::int32_t> tokens, std::span<float> logits) override {
    const auto count = std::int64_t(tokens.size());
    if (count < 1 || count > context_len_ - length_) {
      invalid("forward", fmt::format("{} tokens after {} must fit in a context of {}", count, length_, context_len_));
    }
    const ModelConfig& c = config_;
    for (std::int32_t token : tokens) {
      if (token < 0 || token >= c.vocab_size) {
        invalid("forward", fmt::format("token {} is outside the vocabulary of {}", token, c.vocab_size));
      }
    }
    CallScope call(context);
    const auto matrix = [&call](std::int64_t rows, std::int64_t cols) {
      return TensorView(call.arena().allocate<float>(std::size_t(rows * cols)).data(), DType::f32, {rows, cols});
    };
    auto positions = call.arena().allocate<std::int64_t>(tokens.size());
    std::iota(positions.begin(), positions.end(), length_);
    const TensorView x = matrix(count, c.hidden_size), h = matrix(count, c.hidden_size),
                     projected = matrix(count, c.hidden_size);
    const TensorView q = matrix(count, c.q_size()), k = matrix(count, c.kv_size()), v = matrix(count, c.kv_size());
    const TensorView attended = matrix(count, c.q_size());
    const TensorView gate = matrix(count, c.intermediate_size), up = matrix(count, c.intermediate_size);
    const TensorView scores = matrix(c.num_q_heads * count, length_ + count);

    embedding_.look_up(call.arena(), tokens, x);
    for (Layer& layer : layers_) {
      rms_norm(context, x, vector_view(layer.attention_norm), h, {.eps = c.norm_eps});
      layer.q.run(context, h, q);
      layer.k.run(context, h, k);
      layer.v.run(context, h, v);
      rotate(context, q, c.num_q_heads, positions);
      rotate(context, k, c.num_kv_heads, positions);
      store(call, layer, k, v);
      attend(context, call, layer, q, scores, attended);
      layer.attention_output.run(context, attended, projected);
      add(call, projected, x);
      rms_norm(context, x, vector_view(layer.ffn_norm), h, {.eps = c.norm_eps});
      layer.gate.run(context, h, gate, {.activation = Activation::silu});
      layer.up.run(context, h, up);
      multiply(call, up, gate);
      layer.down.run(context, gate, projected);
      add(call, projected, x);
    }
    length_ += count;
    const TensorView last(x.as<float>() + (count - 1) * c.hidden_size, DType::f32, {1, c.hidden_size});
    rms_norm(context, last, vector_view(output_norm_), last, {.eps = c.norm_eps});
    output_.run(context, last, {logits.data(), DType::f32, {1, c.vocab_size}});
  }

 private:
  void rotate(Context& context, const TensorView& x, std::int64_t num_heads,
              std::span<const std::int64_t> positions) const {
    const TensorView heads(x.data(), DType::f32, {x.size(0), num_heads, config_.head_dim});
    rotary_embedding(context, heads, {positions.data(), DType::i64, {x.size(0)}}, *rope_, heads);
  }

  void store(CallScope& call, Layer& layer, const TensorView& k, const TensorView& v) const {
    const std::int64_t dim = config_.head_dim;
    call.parallel_for(std::size_t(config_.num_kv_heads), [&](std::size_t item, int) {
      const auto head = std::int64_t(item);
      float* keys = layer.keys.as<float>() + (head * context_len_ + length_) * dim;
      float* values = layer.values.as<float>() + head * dim * context_len_ + length_;
      for (std::int64_t t = 0; t < k.size(0); ++t) {
        std::copy_n(k.as<float>() + t * k.stride(0) + head * dim, dim, keys + t * dim);
        for (std::int64_t d = 0; d < dim; ++d)
          values[d * context_len_ + t] = v.as<float>()[t * v.stride(0) + head * dim + d];
      }
    });
  }

  // scores = q k^T; softmax; p v: each matmul packs its second operand first, as every BLAS does inside.
  void attend(Context& context, CallScope& call, Layer& layer, const TensorView& q, const TensorView& scores,
              const TensorView& attended) const {
    const std::int64_t dim = config_.head_dim, count = q.size(0), kv_len = length_ + count;
    const std::int64_t group = config_.num_q_heads / config_.num_kv_heads;
    auto memory = call.arena().allocate<std::byte>(std::max(PackedWeights::packed_bytes(DType::f32, kv_len, dim),
                                                            PackedWeights::packed_bytes(DType::f32, dim, kv_len)));
    const auto head_scores = [&](std::int64_t head) {
      return TensorView(scores.as<float>() + head * count * kv_len, DType::f32, {count, kv_len});
    };
    const auto head_columns = [&](const TensorView& matrix, std::int64_t head) {
      return TensorView(matrix.as<float>() + head * dim, DType::f32, {count, dim}, {matrix.stride(0), 1});
    };
    for (std::int64_t kv_head = 0; kv_head < config_.num_kv_heads; ++kv_head) {
      const ConstTensorView keys(layer.keys.as<float>() + kv_head * context_len_ * dim, DType::f32, {kv_len, dim});
      const PackedWeights packed = PackedWeights::pack(context, keys, memory);
      for (std::int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
        linear(context, head_columns(q, head), packed, head_scores(head));
      }
    }
    causal_softmax(context, {scores.data(), DType::f32, {config_.num_q_heads, count, kv_len}},
                   1.0f / std::sqrt(float(dim)));
    for (std::int64_t kv_head = 0; kv_head < config_.num_kv_heads; ++kv_head) {
      const ConstTensorView values(layer.values.as<float>() + kv_head * dim * context_len_, DType::f32, {dim, kv_len},
                                   {context_len_, 1});
      const PackedWeights packed = PackedWeights::pack(context, values, memory);
      for (std::int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
        linear(context, head_scores(head), packed, head_columns(attended, head));
      }
    }
  }

  template <class Combine>
  static void elementwise(CallScope& call, const TensorView& from, const TensorView& to, Combine combine) {
    const std::int64_t columns = to.size(1);
    call.parallel_for(std::size_t(to.size(0)), [&](std::size_t item, int) {
      const float* a = from.as<float>() + std::int64_t(item) * columns;
      float* b = to.as<float>() + std::int64_t(item) * columns;
      for (std::int64_t i = 0; i < columns; ++i) b[i] = combine(a[i], b[i]);
    });
  }
  static void add(CallScope& call, const TensorView& from, const TensorView& to) {
    elementwise(call, from, to, [](float a, float b) { return a + b; });
  }
  static void multiply(CallScope& call, const TensorView& from, const TensorView& to) {
    elementwise(call, from, to, [](float a, float b) { return a * b; });
  }

  ModelFile file_;
  ModelConfig config_;
  Embedding embedding_;
  std::optional<RopeTable> rope_;
  std::int64_t context_len_, length_ = 0;
  std::vector<Layer> layers_;
  std::vector<float> output_norm_;
  StackedLinear output_;
  Buffer memory_;
};

}  // namespace

std::unique_ptr<UnfusedLlama> UnfusedLlama::load(Context& context, const std::string& path, std::int64_t context_len) {
  return std::make_unique<Unfused>(context, path, context_len);
}

}  // namespace ops_transformer::llm
