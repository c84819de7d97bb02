// SPDX-License-Identifier: Apache-2.0
// linear against the machine in the same run: the peak of its own tile with operands in L1, and a pure read.
#include <benchmark/benchmark.h>

#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "ops_transformer/gemm/linear.h"
#include "ops_transformer/gemm/linear_kernel.h"

namespace ops_transformer {
namespace {

struct PeakCall {
  const float *a, *b;
  float* c;
  std::int64_t steps, zero;
};
struct LevelLimits {
  double (*peak_f32)(const PeakCall&) noexcept;  // the flops done
  double (*peak_bf16)(const PeakCall&) noexcept;
  float (*read_all)(const float* p, std::int64_t n) noexcept;
};

}  // namespace
}  // namespace ops_transformer

#define OPS_TRANSFORMER_ISA generic
#define OPS_TRANSFORMER_ISA_generic 1
#include "ops_transformer/gemm/gemm_bench_region.inl.h"
#undef OPS_TRANSFORMER_ISA
#undef OPS_TRANSFORMER_ISA_generic
#if defined(__x86_64__)
  #define OPS_TRANSFORMER_ISA avx2
  #define OPS_TRANSFORMER_ISA_avx2 1
  #include "ops_transformer/gemm/gemm_bench_region.inl.h"
  #undef OPS_TRANSFORMER_ISA
  #undef OPS_TRANSFORMER_ISA_avx2
  #define OPS_TRANSFORMER_ISA avx512_bf16
  #define OPS_TRANSFORMER_ISA_avx512_bf16 1
  #include "ops_transformer/gemm/gemm_bench_region.inl.h"
  #undef OPS_TRANSFORMER_ISA
  #undef OPS_TRANSFORMER_ISA_avx512_bf16
#endif

namespace ops_transformer {
namespace {

const LevelLimits& limits_of(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::avx512_bf16) return avx512_bf16::limits;
  if (isa >= Isa::avx2) return avx2::limits;
#endif
  return static_cast<void>(isa), generic::limits;
}

constexpr std::int64_t kReadBytes = std::int64_t{256} << 20;

void peak(benchmark::State& state, DType dtype) {
  Context context;
  const LevelLimits& limits = limits_of(context.isa());
  const auto function = dtype == DType::f32 ? limits.peak_f32 : limits.peak_bf16;
  constexpr std::int64_t kSteps = 2048, kItems = 64;
  std::vector<double> flops(kItems);
  std::int64_t zero = 0;
  benchmark::DoNotOptimize(zero);
  for (auto _ : state) {
    CallScope call(context);
    call.parallel_for(kItems, [&](std::size_t item, int) {
      alignas(64) float a[kSteps] = {}, b[64] = {}, c[6 * 64];
      for (int i = 0; i < 16; ++i) flops[item] += function({a, b, c, kSteps, zero});
      benchmark::DoNotOptimize(c);
    });
  }
  const double total = std::accumulate(flops.begin(), flops.end(), 0.0);
  state.counters["flops"] = benchmark::Counter(total, benchmark::Counter::kIsRate);
}

void pure_read(benchmark::State& state) {
  Context context;
  const LevelLimits& limits = limits_of(context.isa());
  Buffer data(kReadBytes);
  std::memset(data.data(), 1, data.size());
  constexpr std::int64_t kFloatsPerItem = std::int64_t{1} << 18;
  for (auto _ : state) {
    CallScope call(context);
    call.parallel_for(kReadBytes / 4 / kFloatsPerItem, [&](std::size_t item, int) {
      float total = limits.read_all(data.as<float>() + std::int64_t(item) * kFloatsPerItem, kFloatsPerItem);
      benchmark::DoNotOptimize(total);
    });
  }
  state.SetBytesProcessed(state.iterations() * kReadBytes);
}

// Weights [outputs, inputs]; `out_of_cache` passes from one copy to the next, so that none is still in a cache.
void linear_of(benchmark::State& state, DType dtype, DType x_dtype, bool out_of_cache) {
  const std::int64_t rows = state.range(0), outputs = state.range(1), inputs = state.range(2);
  Context context;
  std::vector<float> source(std::size_t(outputs * inputs));
  for (std::size_t i = 0; i < source.size(); ++i) source[i] = float(i % 17) - 8.0f;
  const std::size_t bytes = PackedWeights::packed_bytes(dtype, outputs, inputs);
  const std::size_t copies = out_of_cache ? kReadBytes / bytes + 1 : 1;
  Buffer memory(copies * bytes);
  std::vector<PackedWeights> weights;
  for (std::size_t i = 0; i < copies; ++i) {
    weights.push_back(PackedWeights::pack(context, ConstTensorView(source.data(), dtype, {outputs, inputs}),
                                          {memory.data() + i * bytes, bytes}));
  }
  std::vector<float> x(std::size_t(rows * inputs)), out(std::size_t(rows * outputs));
  std::size_t turn = 0;
  for (auto _ : state) {
    linear(context, {x.data(), x_dtype, {rows, inputs}}, weights[turn++ % weights.size()],
           {out.data(), DType::f32, {rows, outputs}});
  }
  state.counters["flops"] = benchmark::Counter(2.0 * double(rows * outputs * inputs) * double(state.iterations()),
                                               benchmark::Counter::kIsRate);
  state.SetBytesProcessed(state.iterations() * std::int64_t(bytes));
}

void register_all() {
  const auto add = [](const std::string& name, auto function, auto... args) {
    return benchmark::RegisterBenchmark(name.c_str(), function, args...)->UseRealTime()->Unit(benchmark::kMicrosecond);
  };
  add("peak_f32", peak, DType::f32);
  add("linear_f32", linear_of, DType::f32, DType::f32, false)->Args({512, 4096, 4096})->Args({512, 576, 576});
  add("peak_bf16", peak, DType::bf16);
  add("linear_bf16", linear_of, DType::bf16, DType::bf16, false)->Args({512, 4096, 4096})->Args({512, 576, 576});
  add("linear_bf16_x_f32", linear_of, DType::bf16, DType::f32, false)->Args({512, 4096, 4096});
  add("pure_read", pure_read);
  for (std::int64_t rows : {1, 4, 8, 16}) {
    add("stream_f32", linear_of, DType::f32, DType::f32, true)->Args({rows, 4096, 4096});
    add("stream_bf16", linear_of, DType::bf16, DType::bf16, true)->Args({rows, 4096, 4096});
  }
  add("stream_f16", linear_of, DType::f16, DType::f32, true)->Args({1, 4096, 4096});
  add("stream_bf16", linear_of, DType::bf16, DType::f32, true)->Args({1, 576, 576})->Args({1, 1536, 576});
  add("linear_bf16", linear_of, DType::bf16, DType::f32, false)->Args({1, 32, 64})->Args({1, 576, 576});
}

const bool registered = (register_all(), true);

}  // namespace
}  // namespace ops_transformer
