// SPDX-License-Identifier: Apache-2.0
// RMSNorm beside a copy of the same bytes on the same threads: GB/s of x read and out written.
#include "ops_transformer/norm/rms_norm.h"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstring>

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
  for (std::int64_t rows : {512, 4096}) benchmark->Args({rows, 4096});
  benchmark->ArgNames({"rows", "hidden"})->UseRealTime();
}

template <DType kType>
void rms_norm(benchmark::State& state) {
  Tensors t(state.range(0), state.range(1), kType);
  Context context;
  for (auto _ : state) {
    ops_transformer::rms_norm(context, {t.x.data(), kType, {t.rows, t.hidden}},
                              {t.weight.data(), DType::f32, {t.hidden}}, {t.out.data(), kType, {t.rows, t.hidden}});
  }
  state.SetBytesProcessed(std::int64_t(state.iterations()) * std::int64_t(2 * t.x.size()));
}
BENCHMARK(rms_norm<DType::f32>)->Apply(shapes);
BENCHMARK(rms_norm<DType::bf16>)->Apply(shapes);

template <DType kType>
void copy(benchmark::State& state) {
  Tensors t(state.range(0), state.range(1), kType);
  Context context;
  const std::size_t rows_per_item = std::max<std::size_t>(1, 16384 / std::size_t(t.hidden));
  const std::size_t row_bytes = t.x.size() / std::size_t(t.rows), item_bytes = rows_per_item * row_bytes;
  for (auto _ : state) {
    CallScope call(context);
    call.parallel_for((t.x.size() + item_bytes - 1) / item_bytes, [&](std::size_t item, int) {
      const std::size_t begin = item * item_bytes, bytes = std::min(item_bytes, t.x.size() - begin);
      std::memcpy(t.out.data() + begin, t.x.data() + begin, bytes);
    });
  }
  state.SetBytesProcessed(std::int64_t(state.iterations()) * std::int64_t(2 * t.x.size()));
}
BENCHMARK(copy<DType::f32>)->Apply(shapes);
BENCHMARK(copy<DType::bf16>)->Apply(shapes);

}  // namespace
}  // namespace ops_transformer
