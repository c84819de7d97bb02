// SPDX-License-Identifier: Apache-2.0
// The norms beside a copy of the same bytes on the same threads: GB/s of x read and out written. Several pairs of
// tensors take turns, so that the larger shapes come from memory.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "ops_transformer/norm/layer_norm.h"
#include "ops_transformer/norm/rms_norm.h"

namespace ops_transformer {
namespace {

struct Tensors {
  Tensors(std::int64_t num_rows, std::int64_t num_columns, DType type)
      : rows(num_rows),
        hidden(num_columns),
        dtype(type),
        x(std::size_t(rows * hidden) * element_bytes(type)),
        out(x.size()),
        weight(std::size_t(hidden) * sizeof(float)) {
    std::memset(x.data(), 0x3c, x.size());
    std::memset(out.data(), 0, out.size());
    std::fill_n(weight.as<float>(), hidden, 1.0f);
  }
  std::int64_t rows, hidden;
  DType dtype;
  Buffer x, out, weight;
};

void shapes(benchmark::internal::Benchmark* benchmark) {
  for (std::int64_t rows : {1, 16, 512}) benchmark->Args({rows, 576});
  for (std::int64_t rows : {1024, 4096}) benchmark->Args({rows, 4096});
  benchmark->ArgNames({"rows", "hidden"})->UseRealTime();
}

// Turns of four pairs.
template <class Body>
void run(benchmark::State& state, DType dtype, const Body& body) {
  std::vector<Tensors> pairs;
  for (int i = 0; i < 4; ++i) pairs.emplace_back(state.range(0), state.range(1), dtype);
  Context context;
  std::size_t turn = 0;
  for (auto _ : state) body(context, pairs[turn++ % pairs.size()]);
  state.SetBytesProcessed(std::int64_t(state.iterations()) * std::int64_t(2 * pairs[0].x.size()));
}

template <DType kType>
void rms_norm(benchmark::State& state) {
  run(state, kType, [](Context& context, Tensors& t) {
    ops_transformer::rms_norm(context, {t.x.data(), kType, {t.rows, t.hidden}},
                              {t.weight.data(), DType::f32, {t.hidden}}, {t.out.data(), kType, {t.rows, t.hidden}});
  });
}
BENCHMARK(rms_norm<DType::f32>)->Apply(shapes);
BENCHMARK(rms_norm<DType::bf16>)->Apply(shapes);

template <DType kType>
void layer_norm(benchmark::State& state) {
  run(state, kType, [](Context& context, Tensors& t) {
    const ConstTensorView weight(t.weight.data(), DType::f32, {t.hidden});
    ops_transformer::layer_norm(context, {t.x.data(), kType, {t.rows, t.hidden}}, weight,
                                {t.out.data(), kType, {t.rows, t.hidden}}, {.bias = weight});
  });
}
BENCHMARK(layer_norm<DType::f32>)->Apply(shapes);
BENCHMARK(layer_norm<DType::bf16>)->Apply(shapes);

template <DType kType>
void copy(benchmark::State& state) {
  run(state, kType, [](Context& context, Tensors& t) {
    const std::size_t rows_per_item = std::max<std::size_t>(1, 16384 / std::size_t(t.hidden));
    const std::size_t row_bytes = t.x.size() / std::size_t(t.rows), item_bytes = rows_per_item * row_bytes;
    CallScope call(context);
    call.parallel_for((t.x.size() + item_bytes - 1) / item_bytes, [&](std::size_t item, int) {
      const std::size_t begin = item * item_bytes, bytes = std::min(item_bytes, t.x.size() - begin);
      std::memcpy(t.out.data() + begin, t.x.data() + begin, bytes);
    });
  });
}
BENCHMARK(copy<DType::f32>)->Apply(shapes);
BENCHMARK(copy<DType::bf16>)->Apply(shapes);

// One memcpy of each thread's half, which past some size stores past the caches.
template <DType kType>
void copy_halves(benchmark::State& state) {
  run(state, kType, [](Context& context, Tensors& t) {
    CallScope call(context);
    const auto parts = std::size_t(call.num_threads());
    call.parallel_for(parts, [&](std::size_t part, int) {
      const std::size_t begin = t.x.size() * part / parts, end = t.x.size() * (part + 1) / parts;
      std::memcpy(t.out.data() + begin, t.x.data() + begin, end - begin);
    });
  });
}
BENCHMARK(copy_halves<DType::f32>)->Apply(shapes);
BENCHMARK(copy_halves<DType::bf16>)->Apply(shapes);

}  // namespace
}  // namespace ops_transformer
