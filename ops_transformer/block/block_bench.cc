// SPDX-License-Identifier: Apache-2.0
// The sublayers beside the same operators one by one, at Llama 2 7B's sizes in bf16. bytes: what is moved, weights
// among it.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <vector>

#include "ops_transformer/block/attention_block.h"
#include "ops_transformer/block/ffn_block.h"
#include "ops_transformer/norm/rms_norm.h"

namespace ops_transformer {
namespace {

constexpr std::int64_t kHidden = 4096, kHeads = 32, kHeadDim = 128, kIntermediate = 11008;

// Small values without a pattern that a cache would see.
Buffer bf16_values(std::int64_t count) {
  Buffer values(std::size_t(count) * 2);
  std::uint32_t state = 1;
  for (std::int64_t i = 0; i < count; ++i) {
    state = state * 1664525u + 1013904223u;
    values.as<BFloat16>()[i] = to_bfloat16(float(std::int32_t(state)) * 0x1p-37f);
  }
  return values;
}

struct Rows {
  explicit Rows(std::int64_t columns) : memory(bf16_values(2048 * columns)), num_columns(columns) {}
  TensorView first(std::int64_t rows) const { return {memory.data(), DType::bf16, {rows, num_columns}}; }
  Buffer memory;
  std::int64_t num_columns;
};

struct Layer {
  Layer() : gains(std::size_t(kHidden) * 4) {
    for (std::int64_t i = 0; i < kHidden; ++i) gains.as<float>()[i] = 1.0f;
    const auto matrix = [](const Buffer& memory, std::int64_t rows, std::int64_t columns) {
      return ConstTensorView(memory.data(), DType::bf16, {rows, columns});
    };
    {
      const Buffer w = bf16_values(kHidden * kHidden);
      const ConstTensorView square = matrix(w, kHidden, kHidden), three[] = {square, square, square};
      attention = AttentionWeights::pack(context, square, square, square, square, {kHeads, kHeads, kHeadDim});
      qkv = PackedWeights::pack(context, three);
    }
    const Buffer w = bf16_values(kHidden * kIntermediate);
    gate_up =
        PackedWeights::pack_gate_up(context, matrix(w, kIntermediate, kHidden), matrix(w, kIntermediate, kHidden));
    down = PackedWeights::pack(context, matrix(w, kHidden, kIntermediate));
  }
  ConstTensorView gain_view() const { return {gains.data(), DType::f32, {kHidden}}; }

  Context context;
  AttentionWeights attention;
  PackedWeights qkv, gate_up, down;
  Buffer gains;
  Rows x{kHidden}, out{kHidden}, normal{kHidden}, heads{3 * kHidden}, attended{kHidden}, gated{kIntermediate};
  RopeTable rope{{.rotary_dim = kHeadDim}};
  std::vector<std::int64_t> positions = std::vector<std::int64_t>(2048, 7);
};

Layer& layer() {
  static Layer one;
  return one;
}

void finish(benchmark::State& state, std::int64_t outputs_by_inputs) {
  state.counters["flops"] = benchmark::Counter(2.0 * double(state.range(0)) * double(outputs_by_inputs),
                                               benchmark::Counter::kIsIterationInvariantRate);
  state.counters["weights"] =
      benchmark::Counter(2.0 * double(outputs_by_inputs), benchmark::Counter::kIsIterationInvariantRate);
}

void ffn_fused(benchmark::State& state) {
  Layer& l = layer();
  const std::int64_t m = state.range(0);
  for (auto _ : state) {
    ffn_block(l.context, l.x.first(m), l.gate_up, l.down, l.out.first(m),
              {.norm = RowNorm{.weight = l.gain_view()}, .residual_connection = true});
  }
  finish(state, 3 * kHidden * kIntermediate);
}

void ffn_unfused(benchmark::State& state) {
  Layer& l = layer();
  const std::int64_t m = state.range(0);
  for (auto _ : state) {
    rms_norm(l.context, l.x.first(m), l.gain_view(), l.normal.first(m));
    gated_linear(l.context, l.normal.first(m), l.gate_up, l.gated.first(m));
    linear(l.context, l.gated.first(m), l.down, l.out.first(m), {.residual = l.x.first(m)});
  }
  finish(state, 3 * kHidden * kIntermediate);
}

void attention_fused(benchmark::State& state) {
  Layer& l = layer();
  const std::int64_t m = state.range(0);
  AttentionBlockOptions options{.norm = RowNorm{.weight = l.gain_view()}, .residual_connection = true, .rope = &l.rope};
  options.positions = ConstTensorView(l.positions.data(), DType::i64, {m});
  options.causal = true;
  for (auto _ : state) attention_block(l.context, l.x.first(m), l.attention, l.out.first(m), options);
  finish(state, 4 * kHidden * kHidden);
}

void attention_unfused(benchmark::State& state) {
  Layer& l = layer();
  const std::int64_t m = state.range(0);
  const ConstTensorView positions(l.positions.data(), DType::i64, {m});
  const auto head_view = [&](const Rows& rows, std::int64_t part) {
    return TensorView(rows.memory.as<BFloat16>() + part * kHidden, DType::bf16, {m, kHeads, kHeadDim},
                      {rows.num_columns, kHeadDim, 1});
  };
  const TensorView q = head_view(l.heads, 0), k = head_view(l.heads, 1), v = head_view(l.heads, 2),
                   attended = head_view(l.attended, 0);
  const std::int64_t offsets[] = {0, m};
  for (auto _ : state) {
    rms_norm(l.context, l.x.first(m), l.gain_view(), l.normal.first(m));
    linear(l.context, l.normal.first(m), l.qkv, l.heads.first(m));
    rotary_embedding(l.context, q, positions, l.rope, q);
    rotary_embedding(l.context, k, positions, l.rope, k);
    flash_attention_varlen(l.context, q, k, v, attended, offsets, offsets, {.mask = Mask::causal});
    linear(l.context, l.attended.first(m), l.attention.output(), l.out.first(m), {.residual = l.x.first(m)});
  }
  finish(state, 4 * kHidden * kHidden);
}

void rows(benchmark::internal::Benchmark* benchmark) {
  for (std::int64_t m : {1, 16, 512}) benchmark->Arg(m);
  benchmark->ArgName("rows")->UseRealTime()->Unit(benchmark::kMicrosecond);
}
BENCHMARK(ffn_fused)->Apply(rows);
BENCHMARK(ffn_unfused)->Apply(rows);
BENCHMARK(attention_fused)->Apply(rows);
BENCHMARK(attention_unfused)->Apply(rows);

}  // namespace
}  // namespace ops_transformer
