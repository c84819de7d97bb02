// SPDX-License-Identifier: Apache-2.0
// linear over quantised weights against the machine, whose limits are timed before every call: `of_peak` is the share
// of the int8 dot product's rate in registers, `of_read` the share of a pure read. Both are medians.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "ops_transformer/gemm/linear.h"

namespace ops_transformer {
namespace {

struct Limits {
  double (*peak_int8)(std::int64_t rounds, std::int32_t* sink) noexcept;
  std::int32_t (*read_all)(const std::byte* p, std::int64_t bytes) noexcept;
};

}  // namespace
}  // namespace ops_transformer

#define OPS_TRANSFORMER_ISA generic
#define OPS_TRANSFORMER_ISA_generic 1
#include "ops_transformer/gemm/quantised_linear_bench_region.inl.h"
#undef OPS_TRANSFORMER_ISA
#undef OPS_TRANSFORMER_ISA_generic
#if defined(__x86_64__)
  #define OPS_TRANSFORMER_ISA avx2
  #define OPS_TRANSFORMER_ISA_avx2 1
  #include "ops_transformer/gemm/quantised_linear_bench_region.inl.h"
  #undef OPS_TRANSFORMER_ISA
  #undef OPS_TRANSFORMER_ISA_avx2
  #define OPS_TRANSFORMER_ISA avx512_vnni
  #define OPS_TRANSFORMER_ISA_avx512_vnni 1
  #include "ops_transformer/gemm/quantised_linear_bench_region.inl.h"
  #undef OPS_TRANSFORMER_ISA
  #undef OPS_TRANSFORMER_ISA_avx512_vnni
#endif

namespace ops_transformer {
namespace {

const Limits& limits_of(Isa isa) {
#if defined(__x86_64__)
  if (isa >= Isa::avx512_vnni) return avx512_vnni::limits;
  if (isa >= Isa::avx2) return avx2::limits;
#endif
  return static_cast<void>(isa), generic::limits;
}

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + std::ptrdiff_t(values.size() / 2), values.end());
  return values[values.size() / 2];
}

// Operations a second.
double time_peak(Context& context) {
  const Limits& limits = limits_of(context.isa());
  std::vector<double> done(std::size_t(context.num_threads()));
  CallScope call(context);
  const auto start = Clock::now();
  call.parallel_for(done.size(), [&](std::size_t item, int) {
    std::int32_t sink;
    done[item] = limits.peak_int8(20000, &sink);
    benchmark::DoNotOptimize(sink);
  });
  double total = 0;
  for (double d : done) total += d;
  return total / seconds_since(start);
}

// Bytes a second.
double time_read(Context& context, const Buffer& memory) {
  constexpr std::size_t kItemBytes = std::size_t{1} << 20;
  const Limits& limits = limits_of(context.isa());
  const std::size_t items = memory.size() / kItemBytes;
  CallScope call(context);
  const auto start = Clock::now();
  call.parallel_for(items, [&](std::size_t item, int) {
    std::int32_t sum = limits.read_all(memory.data() + item * kItemBytes, kItemBytes);
    benchmark::DoNotOptimize(sum);
  });
  return double(items * kItemBytes) / seconds_since(start);
}

struct Shape {
  DType dtype;
  std::int64_t outputs, inputs;
  std::int64_t group_len = -1;  // of integer weights, whose scales are f32; -1: none

  WeightScaling scaling() const { return {.group_len = std::max<std::int64_t>(0, group_len)}; }
};

// Matrices one after the other in memory that is larger than the caches; turns of them are run.
class Model {
 public:
  Model(Context& context, const std::vector<Shape>& shapes) {
    std::size_t bytes = 0;
    for (const Shape& s : shapes) bytes += PackedWeights::packed_bytes(s.dtype, s.outputs, s.inputs, s.scaling());
    memory_ = Buffer(bytes);
    std::size_t at = 0;
    for (const Shape& s : shapes) {
      const std::size_t packed = PackedWeights::packed_bytes(s.dtype, s.outputs, s.inputs, s.scaling());
      weights_.push_back(pack(context, s, {memory_.data() + at, packed}));
      at += packed;
    }
    std::mt19937 engine(1);
    std::normal_distribution<float> normal;
    x_.resize(512 * 4096);
    for (float& x : x_) x = normal(engine);
    out_.resize(512 * 4096);
  }

  void run(Context& context, std::int64_t rows, std::size_t i) {
    const PackedWeights& w = weights_[i];
    linear(context, {x_.data(), DType::f32, {rows, w.num_inputs()}}, w,
           {out_.data(), DType::f32, {rows, w.num_outputs()}});
  }
  std::size_t size() const { return weights_.size(); }
  const Buffer& memory() const { return memory_; }

 private:
  PackedWeights pack(Context& context, const Shape& s, std::span<std::byte> memory) {
    if (s.group_len < 0) return PackedWeights::pack(context, source(s), memory);
    const std::vector<float> scales(std::size_t(s.outputs * s.inputs), 0.01f);
    const std::int64_t groups = s.group_len ? s.inputs / s.group_len : 1;
    return PackedWeights::pack_integers(
        context, source(s),
        {.scales = ConstTensorView(scales.data(), DType::f32, {s.outputs, groups}), .group_len = s.group_len}, memory);
  }
  // Random bytes, of which no two are an f16 that is infinite or NaN.
  ConstTensorView source(const Shape& s) {
    const DTypeInfo& info = dtype_info(s.dtype);
    bytes_.resize(std::size_t(s.outputs * s.inputs) / info.block_len * info.block_bytes);
    std::mt19937 engine(2);
    for (std::byte& b : bytes_) b = std::byte(engine() & 0x3f);
    return {bytes_.data(), s.dtype, {s.outputs, s.inputs}};
  }
  Buffer memory_;
  std::vector<PackedWeights> weights_;
  std::vector<std::byte> bytes_;
  std::vector<float> x_, out_;
};

void prefill(benchmark::State& state, Shape shape, std::int64_t rows) {
  Context context;
  Model model(context, {shape});
  std::vector<double> of_peak, rates;
  for (auto _ : state) {
    const double peak = time_peak(context);
    const auto start = Clock::now();
    model.run(context, rows, 0);
    const double seconds = seconds_since(start);
    state.SetIterationTime(seconds);
    rates.push_back(2.0 * double(rows * shape.outputs * shape.inputs) / seconds);
    of_peak.push_back(rates.back() / peak);
  }
  state.counters["ops"] = median(rates);
  state.counters["of_peak"] = median(of_peak);
}

void stream(benchmark::State& state, const std::vector<Shape>& shapes, std::int64_t rows) {
  Context context;
  Model model(context, shapes);
  std::vector<double> of_read, rates;
  for (auto _ : state) {
    const double read = time_read(context, model.memory());
    const auto start = Clock::now();
    for (std::size_t i = 0; i < model.size(); ++i) model.run(context, rows, i);
    const double seconds = seconds_since(start);
    state.SetIterationTime(seconds);
    rates.push_back(double(model.memory().size()) / seconds);
    of_read.push_back(rates.back() / read);
  }
  state.counters["bytes"] = median(rates);
  state.counters["of_read"] = median(of_read);
}

// The matrices of a 135M llama: for each layer q, k, v; attention's output; gate and up; down.
std::vector<Shape> layers_135m() {
  std::vector<Shape> shapes;
  for (int layer = 0; layer < 30; ++layer) {
    for (const Shape& s : {Shape{DType::q4_1, 960, 576}, Shape{DType::q4_1, 576, 576}, Shape{DType::q4_1, 3072, 576},
                           Shape{DType::q4_1, 576, 1536}})
      shapes.push_back(s);
  }
  return shapes;
}

// Gemma 3 270M as its Q4_K_M file has it, 18 layers: hidden 640 is no multiple of 256, so what reads it is Q5_0.
std::vector<Shape> layers_gemma3_270m() {
  std::vector<Shape> shapes;
  for (int layer = 0; layer < 18; ++layer) {
    for (const Shape& s : {Shape{DType::q5_0, 1280, 640}, Shape{DType::q8_0, 256, 640}, Shape{DType::q4_k, 640, 1024},
                           Shape{DType::q5_0, 4096, 640}, Shape{DType::q6_k, 640, 2048}})
      shapes.push_back(s);
  }
  return shapes;
}

void register_all() {
  const auto add = [](const std::string& name, auto function, auto... args) {
    benchmark::RegisterBenchmark(name.c_str(), function, args...)->UseManualTime()->Unit(benchmark::kMicrosecond);
  };
  const auto prefill_of = [&](DType dtype, std::int64_t outputs, std::int64_t inputs) {
    add("quantised_prefill/" + std::string(dtype_name(dtype)) + "/512x" + std::to_string(inputs) + "x" +
            std::to_string(outputs),
        prefill, Shape{dtype, outputs, inputs}, std::int64_t{512});
  };
  for (DType dtype : {DType::q4_0, DType::q4_1, DType::q5_0, DType::q5_1, DType::q8_0, DType::q2_k, DType::q3_k,
                      DType::q4_k, DType::q5_k, DType::q6_k}) {
    prefill_of(dtype, 4096, 4096);
    for (std::int64_t rows : {1, 2, 4, 8, 16}) {
      add("quantised_stream/" + std::string(dtype_name(dtype)) + "/" + std::to_string(rows) + "x4096x4096", stream,
          std::vector<Shape>(10, {dtype, 4096, 4096}), rows);
    }
  }
  for (DType dtype : {DType::s8, DType::s4}) {
    for (std::int64_t group_len : {0, 32, 128}) {
      const std::string name = std::string(dtype_name(dtype)) + "/g" + std::to_string(group_len);
      const Shape shape{dtype, 4096, 4096, group_len};
      add("integer_prefill/" + name + "/512x4096x4096", prefill, shape, std::int64_t{512});
      for (std::int64_t rows : {1, 4, 16}) {
        add("integer_stream/" + name + "/" + std::to_string(rows) + "x4096x4096", stream,
            std::vector<Shape>(dtype == DType::s8 ? 10 : 16, shape), rows);
      }
    }
  }
  // SmolLM2 135M, then Gemma 3 270M.
  for (DType dtype : {DType::q4_0, DType::q4_1, DType::q8_0}) {
    for (const auto& [outputs, inputs] :
         {std::pair{960, 576}, std::pair{576, 576}, std::pair{3072, 576}, std::pair{576, 1536}})
      prefill_of(dtype, outputs, inputs);
  }
  for (const Shape& s : {Shape{DType::q5_0, 1280, 640}, Shape{DType::q5_0, 4096, 640}, Shape{DType::q8_0, 4096, 640},
                         Shape{DType::q4_k, 640, 1024}, Shape{DType::q4_k, 640, 2048}, Shape{DType::q6_k, 640, 2048}})
    prefill_of(s.dtype, s.outputs, s.inputs);
  add("quantised_decode_135m/layers", stream, layers_135m(), std::int64_t{1});
  auto all = layers_135m();
  all.push_back({DType::q8_0, 49152, 576});
  add("quantised_decode_135m/all", stream, all, std::int64_t{1});
  add("quantised_decode_gemma3_270m/layers", stream, layers_gemma3_270m(), std::int64_t{1});
  auto gemma = layers_gemma3_270m();
  gemma.push_back({DType::q8_0, 262144, 640});
  add("quantised_decode_gemma3_270m/all", stream, gemma, std::int64_t{1});
}

const bool registered = (register_all(), true);

}  // namespace
}  // namespace ops_transformer
