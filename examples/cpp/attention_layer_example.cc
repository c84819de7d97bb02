// SPDX-License-Identifier: Apache-2.0
// One attention sublayer of a llama-like model: norm, one matmul for q, k and v, rotation, flash attention, and the
// output projection, which adds the residual on the way. Random weights; prints what each operator took.
#include <ops_transformer/attention/flash_attention.h>
#include <ops_transformer/gemm/linear.h>
#include <ops_transformer/norm/rms_norm.h>
#include <ops_transformer/posembedding/rope.h>
#include <ops_transformer/profiler/profiler.h>

#include <cstdio>
#include <numeric>
#include <random>
#include <vector>

namespace ot = ops_transformer;

namespace {

constexpr std::int64_t kTokens = 256, kHidden = 576, kNumQHeads = 9, kNumKvHeads = 3, kHeadDim = 64;
constexpr std::int64_t kQWidth = kNumQHeads * kHeadDim, kKvWidth = kNumKvHeads * kHeadDim;
constexpr std::int64_t kQkvWidth = kQWidth + 2 * kKvWidth;

std::vector<float> random_values(std::int64_t count, float deviation) {
  static std::mt19937 generator(1);
  std::normal_distribution<float> normal(0.0f, deviation);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = normal(generator);
  return values;
}

// Heads of one part of the fused q, k, v rows: [heads, tokens, dim] by strides alone, nothing is copied.
ot::TensorView heads(std::vector<float>& qkv, std::int64_t first_column, std::int64_t num_heads) {
  return {qkv.data() + first_column, ot::DType::f32, {1, num_heads, kTokens, kHeadDim}, {0, kHeadDim, kQkvWidth, 1}};
}

}  // namespace

int main() {
  ot::Context context;
  ot::Profiler profiler;
  context.set_profiler(&profiler);

  auto q_weight = random_values(kQWidth * kHidden, 0.04f), k_weight = random_values(kKvWidth * kHidden, 0.04f);
  auto v_weight = random_values(kKvWidth * kHidden, 0.04f), out_weight = random_values(kHidden * kQWidth, 0.04f);
  const ot::ConstTensorView parts[] = {{q_weight.data(), ot::DType::f32, {kQWidth, kHidden}},
                                       {k_weight.data(), ot::DType::f32, {kKvWidth, kHidden}},
                                       {v_weight.data(), ot::DType::f32, {kKvWidth, kHidden}}};
  const auto qkv_weights = ot::PackedWeights::pack(context, parts);
  const auto out_weights =
      ot::PackedWeights::pack(context, ot::ConstTensorView{out_weight.data(), ot::DType::f32, {kHidden, kQWidth}});
  const std::vector<float> norm_weight(kHidden, 1.0f);
  const ot::RopeTable rope({.rotary_dim = kHeadDim});

  auto hidden = random_values(kTokens * kHidden, 1.0f);
  std::vector<float> normed(hidden.size()), qkv(kTokens * kQkvWidth), attended(kTokens * kQWidth);
  std::vector<std::int32_t> positions(kTokens);
  std::iota(positions.begin(), positions.end(), 0);

  const ot::TensorView hidden_view(hidden.data(), ot::DType::f32, {kTokens, kHidden});
  const ot::TensorView normed_view(normed.data(), ot::DType::f32, {kTokens, kHidden});
  const ot::ConstTensorView positions_view(positions.data(), ot::DType::i32, {kTokens});

  ot::rms_norm(context, hidden_view, {norm_weight.data(), ot::DType::f32, {kHidden}}, normed_view);
  ot::linear(context, normed_view, qkv_weights, {qkv.data(), ot::DType::f32, {kTokens, kQkvWidth}});
  // q and k stand side by side in a row, so one call turns the heads of both in place.
  const ot::TensorView q_and_k(qkv.data(), ot::DType::f32, {kTokens, kNumQHeads + kNumKvHeads, kHeadDim},
                               {kQkvWidth, kHeadDim, 1});
  ot::rotary_embedding(context, q_and_k, positions_view, rope, q_and_k);
  ot::flash_attention(context, heads(qkv, 0, kNumQHeads), heads(qkv, kQWidth, kNumKvHeads),
                      heads(qkv, kQWidth + kKvWidth, kNumKvHeads),
                      {attended.data(), ot::DType::f32, {1, kNumQHeads, kTokens, kHeadDim}, {0, kHeadDim, kQWidth, 1}},
                      {.mask = ot::Mask::causal});
  ot::linear(context, ot::ConstTensorView(attended.data(), ot::DType::f32, {kTokens, kQWidth}), out_weights,
             hidden_view, {.residual = hidden_view});

  std::printf("%s", profiler.table().c_str());
  return 0;
}
