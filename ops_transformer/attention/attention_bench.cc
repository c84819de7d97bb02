// SPDX-License-Identifier: Apache-2.0
// Prefill as a share of the multiply-add peak, decode as a share of a pure read; both are timed by turns with the
// operator, since they move by the minute.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <numeric>
#include <optional>
#include <random>
#include <vector>

#include "ops_transformer/attention/flash_attention.h"
#include "ops_transformer/attention/fused_rope_attention.h"
#include "ops_transformer/base/memory.h"
#include "ops_transformer/kv_cache/kv_pool.h"
#if defined(__x86_64__)
  #include <immintrin.h>
#endif

namespace ops_transformer {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_of(const std::function<void()>& work) {
  const auto start = Clock::now();
  work();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + std::ptrdiff_t(values.size() / 2), values.end());
  return values[values.size() / 2];
}

constexpr int kRounds = 400000, kChains = 12;

#if defined(__x86_64__)
__attribute__((target("avx512f,avx512bf16"))) void multiply_bf16() {
  __m512 sum[kChains] = {};
  __m512i ones = _mm512_set1_epi16(0x3f00);
  asm("" : "+v"(ones));
  for (int i = 0; i < kRounds; ++i) {
  #pragma GCC unroll 12
    for (__m512& s : sum) {
      s = _mm512_dpbf16_ps(s, (__m512bh)ones, (__m512bh)ones);
      asm("" : "+v"(s));
    }
  }
  for (__m512& s : sum) asm volatile("" : : "v"(s));
}
__attribute__((target("avx512f"))) void multiply_f32() {
  __m512 sum[kChains] = {}, half = _mm512_set1_ps(0.5f);
  asm("" : "+v"(half));
  for (int i = 0; i < kRounds; ++i) {
  #pragma GCC unroll 12
    for (__m512& s : sum) {
      s = _mm512_fmadd_ps(s, half, half);
      asm("" : "+v"(s));
    }
  }
  for (__m512& s : sum) asm volatile("" : : "v"(s));
}
__attribute__((target("avx512f"))) void read_bytes(const std::byte* data, std::size_t bytes) {
  __m512i sum[8] = {};
  for (std::size_t i = 0; i + 512 <= bytes; i += 512) {
  #pragma GCC unroll 8
    for (std::size_t j = 0; j < 8; ++j) sum[j] = _mm512_xor_si512(sum[j], _mm512_loadu_si512(data + i + 64 * j));
  }
  for (__m512i& s : sum) asm volatile("" : : "v"(s));
}
#endif

// Operations a second of the best multiply-add for keys of this type.
double peak_rate(ThreadPool& pool, DType dtype) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512bf16")) {
    const bool bf16 = dtype == DType::bf16;
    const auto items = std::size_t(pool.num_threads());
    const double seconds =
        seconds_of([&] { pool.run(items, [&](std::size_t, int) { bf16 ? multiply_bf16() : multiply_f32(); }); });
    return double(items) * kRounds * kChains * (bf16 ? 64.0 : 32.0) / seconds;
  }
#endif
  static_cast<void>(pool);
  static_cast<void>(dtype);
  return 0;
}

double read_rate(ThreadPool& pool, const std::byte* data, std::size_t bytes) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) {
    constexpr std::size_t kChunk = std::size_t{1} << 20;
    return double(bytes) / seconds_of([&] {
             pool.run(bytes / kChunk, [&](std::size_t i, int) { read_bytes(data + i * kChunk, kChunk); });
           });
  }
#endif
  static_cast<void>(pool);
  static_cast<void>(data);
  return double(bytes);
}

// Normal values of a dtype; the same 64 Ki of them over and over, since making them takes longer than the benchmark.
void fill(std::byte* data, std::size_t count, DType dtype) {
  static const auto values = [] {
    std::mt19937 engine(1);
    std::normal_distribution<float> normal;
    std::vector<float> v(std::size_t{1} << 16);
    for (float& x : v) x = normal(engine);
    return v;
  }();
  for (std::size_t i = 0; i < count; ++i) {
    const float x = values[(i * 7 + i / 65536) & 65535];
    if (dtype == DType::f32) {
      reinterpret_cast<float*>(data)[i] = x;
    } else {
      reinterpret_cast<BFloat16*>(data)[i] = to_bfloat16(x);
    }
  }
}

struct Tensor {
  Tensor(DType wanted, std::vector<std::int64_t> wanted_shape) : dtype(wanted), shape(std::move(wanted_shape)) {
    const auto count = std::size_t(std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>()));
    memory = Buffer(count * element_bytes(dtype));
    fill(memory.data(), count, dtype);
  }
  TensorView view() const { return {memory.data(), dtype, shape}; }
  DType dtype;
  std::vector<std::int64_t> shape;
  Buffer memory;
};

// Args: query heads, key heads, head dim, length, dtype.
void causal_prefill(benchmark::State& state) {
  const std::int64_t heads = state.range(0), kv_heads = state.range(1), dim = state.range(2), len = state.range(3);
  const DType dtype = state.range(4) ? DType::bf16 : DType::f32;
  Tensor q(dtype, {len, heads, dim}), k(dtype, {len, kv_heads, dim}), v(dtype, {len, kv_heads, dim}),
      out(dtype, {len, heads, dim});
  Context context;
  ThreadPool pool(context.num_threads());
  const std::vector<std::int64_t> offsets = {0, len};
  std::vector<double> rates, shares;
  const double flops = 2.0 * double(heads * len * len * dim);
  for (auto _ : state) {
    const double peak = peak_rate(pool, dtype);
    const double seconds = seconds_of([&] {
      flash_attention_varlen(context, q.view(), k.view(), v.view(), out.view(), offsets, offsets,
                             {.mask = Mask::causal});
    });
    state.SetIterationTime(seconds);
    rates.push_back(flops / seconds);
    shares.push_back(flops / seconds / std::max(peak, peak_rate(pool, dtype)));
  }
  state.counters["GFLOP/s"] = median(rates) * 1e-9;
  state.counters["of_peak"] = median(shares);
}

enum Rule : int {
  alibi,
  soft_cap,
  sink,
  bias_by_head,
  bias_for_all,
  all_visible,
  half_visible,
  documents,
  dropout,
  window_1024,
  num_rules
};
constexpr const char* kRuleNames[num_rules] = {"alibi",
                                               "soft-cap",
                                               "sink",
                                               "bias [heads, len, len]",
                                               "bias [len, len]",
                                               "all visible [len, len]",
                                               "half visible [len, len]",
                                               "documents of 256 [len, len]",
                                               "dropout by seed",
                                               "window 1024"};

// What a rule costs, by turns with causal attention without it. Args: rule, length, dtype; 32 heads of 128.
void causal_prefill_with(benchmark::State& state) {
  constexpr std::int64_t kHeads = 32, kDim = 128;
  const std::int64_t rule = state.range(0), len = state.range(1);
  const DType dtype = state.range(2) ? DType::bf16 : DType::f32;
  Tensor q(dtype, {1, len, kHeads, kDim}), k(dtype, {1, len, kHeads, kDim}), v(dtype, {1, len, kHeads, kDim}),
      out(dtype, {1, len, kHeads, kDim});
  const auto heads = [&](const Tensor& t) {
    return TensorView(t.view().data(), dtype, {1, kHeads, len, kDim},
                      {len * kHeads * kDim, kDim, kHeads * kDim, std::int64_t{1}});
  };
  const std::vector<float> per_head(kHeads, 0.01f);
  FlashAttentionOptions options{.mask = Mask::causal};
  std::optional<Tensor> grid;
  if (rule == alibi) options.alibi_slopes = per_head;
  if (rule == soft_cap) options.logit_soft_cap = 30;
  if (rule == sink) options.sinks = per_head;
  if (rule == bias_by_head) grid.emplace(dtype, std::vector<std::int64_t>{kHeads, len, len});
  if (rule == bias_for_all) grid.emplace(dtype, std::vector<std::int64_t>{len, len});
  if (grid) options.bias = grid->view();
  std::vector<std::uint8_t> visible(std::size_t(len * len), 1);
  if (rule == half_visible) {
    std::mt19937 engine(1);
    for (std::uint8_t& x : visible) x = engine() >> 31;
  }
  for (std::size_t i = 0; rule == documents && i < visible.size(); ++i) {
    visible[i] = i / std::size_t(len) / 256 == i % std::size_t(len) / 256;
  }
  if (rule == dropout) {
    options.dropout_seed = 1;
    options.keep_prob = 0.9f;
  }
  if (rule == all_visible || rule == half_visible || rule == documents) {
    options.visible = ConstTensorView(visible.data(), DType::boolean, {len, len});
  }
  if (rule == window_1024) options.window = 1024;
  // Scores that the rule leaves to compute.
  const double seen = rule == window_1024 ? double(len) * 1024 - 1024.0 * 1023 / 2
                      : rule == documents ? double(len) * 257 / 2
                                          : double(len) * double(len + 1) / 2;
  const double share = seen / (double(len) * double(len + 1) / 2);
  Context context;
  std::vector<double> ratios, rates;
  for (auto _ : state) {
    const auto attend = [&](const FlashAttentionOptions& chosen) {
      return seconds_of([&] { flash_attention(context, heads(q), heads(k), heads(v), heads(out), chosen); });
    };
    const double plain = attend({.mask = Mask::causal}), seconds = attend(options);
    state.SetIterationTime(seconds);
    ratios.push_back(plain * share / seconds);
    rates.push_back(4 * double(kHeads * kDim) * seen / seconds);
  }
  state.SetLabel(kRuleNames[rule]);
  state.counters["GFLOP/s"] = median(rates) * 1e-9;
  state.counters["of_plain"] = median(ratios);
}

// Rotation fused, by turns with attention alone and with rotating first. Args: length, dtype; 32 heads of 128.
void rope_prefill(benchmark::State& state) {
  constexpr std::int64_t kHeads = 32, kDim = 128;
  const std::int64_t len = state.range(0);
  const DType dtype = state.range(1) ? DType::bf16 : DType::f32;
  Tensor q(dtype, {len, kHeads, kDim}), k(dtype, {len, kHeads, kDim}), v(dtype, {len, kHeads, kDim}),
      out(dtype, {len, kHeads, kDim}), rotated_q(dtype, {len, kHeads, kDim}), rotated_k(dtype, {len, kHeads, kDim});
  const auto heads = [&](const Tensor& t) {
    return TensorView(t.view().data(), dtype, {1, kHeads, len, kDim},
                      {len * kHeads * kDim, kDim, kHeads * kDim, std::int64_t{1}});
  };
  const RopeTable table({.rotary_dim = kDim});
  std::vector<std::int32_t> positions(static_cast<std::size_t>(len));
  std::iota(positions.begin(), positions.end(), 0);
  const ConstTensorView at(positions.data(), DType::i32, {len});
  Context context;
  std::vector<double> of_plain, of_separate;
  for (auto _ : state) {
    const double plain =
        seconds_of([&] { flash_attention(context, heads(q), heads(k), heads(v), heads(out), {.mask = Mask::causal}); });
    const double separate = seconds_of([&] {
      rotary_embedding(context, q.view(), at, table, rotated_q.view());
      rotary_embedding(context, k.view(), at, table, rotated_k.view());
      flash_attention(context, heads(rotated_q), heads(rotated_k), heads(v), heads(out), {.mask = Mask::causal});
    });
    const double fused = seconds_of([&] {
      fused_rope_attention(context, heads(q), heads(k), heads(v), table, heads(out), {.positions = at, .causal = true});
    });
    state.SetIterationTime(fused);
    of_plain.push_back(plain / fused);
    of_separate.push_back(separate / fused);
  }
  state.counters["of_plain"] = median(of_plain);
  state.counters["of_separate"] = median(of_separate);
}

// Args: query heads, key heads, head dim, length, dtype, page size. As many layers as fill 1 GiB, one after the other.
void paged_decode(benchmark::State& state) {
  const std::int64_t heads = state.range(0), kv_heads = state.range(1), dim = state.range(2), len = state.range(3),
                     page_size = state.range(5);
  const DType dtype = state.range(4) ? DType::bf16 : DType::f32;
  const std::int64_t num_pages = (len + page_size - 1) / page_size;
  const double layer_bytes = 2.0 * double(kv_heads * len * dim) * double(element_bytes(dtype));
  const auto layers = std::int64_t(double(1 << 30) / layer_bytes) + 1;
  KvPool cache({.num_layers = layers,
                .num_kv_heads = kv_heads,
                .head_dim = dim,
                .page_size = page_size,
                .num_pages = num_pages,
                .dtype = dtype});
  const SequenceId sequence = cache.add_sequence();
  std::vector<std::int64_t> slots(static_cast<std::size_t>(len));
  cache.append(sequence, slots);
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    const KvPages pages = cache.pages(layer);
    fill(static_cast<std::byte*>(pages.k.data()), std::size_t(pages.k.num_elements()), dtype);
    fill(static_cast<std::byte*>(pages.v.data()), std::size_t(pages.v.num_elements()), dtype);
  }
  Tensor q(DType::f32, {1, heads, dim}), out(DType::f32, {1, heads, dim});
  Context context;
  ThreadPool pool(context.num_threads());
  const auto* bytes = static_cast<const std::byte*>(cache.pages(0).k.data());
  PagedKvView view = cache.view(0, std::span(&sequence, 1));
  const std::vector<std::int64_t> offsets = {0, 1};
  std::vector<double> rates, shares;
  for (auto _ : state) {
    const double before = read_rate(pool, bytes, std::size_t{1} << 29);
    const double seconds = seconds_of([&] {
      for (std::int64_t layer = 0; layer < layers; ++layer) {
        cache.select_layer(view, layer);
        flash_attention_paged(context, q.view(), view, out.view(), offsets, {.mask = Mask::causal});
      }
    });
    state.SetIterationTime(seconds);
    rates.push_back(layer_bytes * double(layers) / seconds);
    shares.push_back(rates.back() / std::max(before, read_rate(pool, bytes, std::size_t{1} << 29)));
  }
  state.counters["GB/s"] = median(rates) * 1e-9;
  state.counters["of_read"] = median(shares);
  state.counters["us/layer"] = layer_bytes / median(rates) * 1e6;
}

// int8 keys and values, or bf16 ones, contiguous [heads, len, dim]; queries are f32. Args: query heads, key heads, head
// dim, length, kind: 0 bf16, 1 int8 with a scale a token, 2 with a scale a channel, 3 with both offsets and a scale a
// token. As many layers as fill 1 GiB, one after the other.
void codes_decode(benchmark::State& state) {
  const std::int64_t heads = state.range(0), kv_heads = state.range(1), dim = state.range(2), len = state.range(3),
                     kind = state.range(4);
  const DType dtype = kind ? DType::s8 : DType::bf16;
  const double layer_bytes = 2.0 * double(kv_heads * len * dim) * double(element_bytes(dtype));
  const auto layers = std::int64_t(double(1 << 30) / layer_bytes) + 1;
  const std::int64_t elements = kv_heads * len * dim;
  Buffer cache(std::size_t(double(layers) * layer_bytes));
  if (kind) {
    std::mt19937 engine(1);
    for (std::size_t i = 0; i < cache.size(); ++i) cache.data()[i] = std::byte(i < 65536 ? engine() : 0);
    for (std::size_t i = 65536; i < cache.size(); ++i) cache.data()[i] = cache.data()[i - 65536];
  } else {
    fill(cache.data(), std::size_t(2 * layers * elements), dtype);
  }
  Tensor q(DType::f32, {1, heads, 1, dim}), out(DType::f32, {1, heads, 1, dim});
  Tensor tokens(DType::f32, {1, kv_heads, len, 1}), channels(DType::f32, {1, kv_heads, 1, dim});
  FlashAttentionOptions options;
  if (kind) options.k_scales = options.v_scales = kind == 2 ? channels.view() : tokens.view();
  if (kind == 3) options.k_offsets = options.v_offsets = tokens.view();
  Context context;
  ThreadPool pool(context.num_threads());
  std::vector<double> rates, shares;
  for (auto _ : state) {
    const double before = read_rate(pool, cache.data(), std::size_t{1} << 29);
    const double seconds = seconds_of([&] {
      for (std::int64_t layer = 0; layer < layers; ++layer) {
        std::byte* k = cache.data() + std::size_t(double(layer) * layer_bytes);
        const TensorView k_view(k, dtype, {1, kv_heads, len, dim});
        const TensorView v_view(k + std::size_t(layer_bytes / 2), dtype, {1, kv_heads, len, dim});
        flash_attention(context, q.view(), k_view, v_view, out.view(), options);
      }
    });
    state.SetIterationTime(seconds);
    rates.push_back(layer_bytes * double(layers) / seconds);
    shares.push_back(rates.back() / std::max(before, read_rate(pool, cache.data(), std::size_t{1} << 29)));
  }
  constexpr const char* kKinds[] = {"bf16", "int8 by token", "int8 by channel", "int8 by token, offsets"};
  state.SetLabel(kKinds[kind]);
  state.counters["GB/s"] = median(rates) * 1e-9;
  state.counters["of_read"] = median(shares);
  state.counters["us/layer"] = layer_bytes / median(rates) * 1e6;
}

// Decode of 16 sequences over the same prefix and 64 keys of their own, by turns with the same where each has its own
// copy of the prefix. Args: query heads, key heads, prefix, dtype; dim 128, pages of 64.
void shared_prefix_decode(benchmark::State& state) {
  constexpr std::int64_t kBatch = 16, kOwn = 64, kPage = 64, kDim = 128;
  const std::int64_t heads = state.range(0), kv_heads = state.range(1), prefix = state.range(2);
  const DType dtype = state.range(3) ? DType::bf16 : DType::f32;
  const std::int64_t num_pages = kBatch * (prefix + kOwn) / kPage;
  KvPool cache({.num_layers = 1,
                .num_kv_heads = kv_heads,
                .head_dim = kDim,
                .page_size = kPage,
                .num_pages = num_pages + prefix / kPage,
                .dtype = dtype});
  const KvPages pages = cache.pages(0);
  fill(static_cast<std::byte*>(pages.k.data()), std::size_t(pages.k.num_elements()), dtype);
  fill(static_cast<std::byte*>(pages.v.data()), std::size_t(pages.v.num_elements()), dtype);
  const std::int64_t in_table = (prefix + kOwn) / kPage;
  std::vector<std::int32_t> own(static_cast<std::size_t>(kBatch * in_table)), shared;
  std::iota(own.begin(), own.end(), 0);
  shared = own;
  for (std::size_t i = 0; i < shared.size(); ++i) {
    if (std::int64_t(i) % in_table < prefix / kPage) shared[i] = own[i % std::size_t(in_table)];
  }
  const std::vector<std::int32_t> lens(kBatch, std::int32_t(prefix + kOwn));
  Tensor q(DType::f32, {kBatch, heads, kDim}), out(DType::f32, {kBatch, heads, kDim});
  std::vector<std::int64_t> offsets(kBatch + 1);
  std::iota(offsets.begin(), offsets.end(), 0);
  Context context;
  const auto decode = [&](const std::vector<std::int32_t>& table) {
    const auto view = PagedKvView::from_arrays(pages.k, pages.v, {table.data(), DType::i32, {kBatch, in_table}},
                                               {lens.data(), DType::i32, {kBatch}});
    return seconds_of(
        [&] { flash_attention_paged(context, q.view(), view, out.view(), offsets, {.mask = Mask::causal}); });
  };
  std::vector<double> gains;
  for (auto _ : state) {
    const double alone = decode(own), together = decode(shared);
    state.SetIterationTime(together);
    gains.push_back(alone / together);
  }
  state.counters["of_own"] = median(gains);
}

BENCHMARK(causal_prefill)
    ->Args({9, 3, 64, 512, 1})
    ->Args({9, 3, 64, 512, 0})
    ->Args({32, 32, 128, 512, 1})
    ->Args({32, 32, 128, 2048, 1})
    ->Args({32, 8, 128, 2048, 1})
    ->Args({32, 32, 128, 512, 0})
    ->Args({32, 8, 128, 2048, 0})
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK(causal_prefill_with)
    ->ArgsProduct({benchmark::CreateDenseRange(alibi, dropout, 1), {2048}, {0, 1}})
    ->Args({window_1024, 8192, 0})
    ->Args({window_1024, 8192, 1})
    ->UseManualTime()
    ->Iterations(7)
    ->Unit(benchmark::kMillisecond);
BENCHMARK(rope_prefill)
    ->ArgsProduct({{512, 2048}, {0, 1}})
    ->UseManualTime()
    ->Iterations(7)
    ->Unit(benchmark::kMillisecond);
BENCHMARK(paged_decode)
    ->Args({9, 3, 64, 4096, 1, 64})
    ->Args({9, 3, 64, 4096, 1, 16})
    ->Args({9, 3, 64, 4096, 0, 64})
    ->Args({32, 32, 128, 4096, 1, 64})
    ->Args({32, 8, 128, 4096, 1, 64})
    ->Args({32, 8, 128, 32768, 1, 64})
    ->Args({32, 8, 128, 32768, 0, 64})
    ->UseManualTime()
    ->Iterations(7)
    ->Unit(benchmark::kMillisecond);
BENCHMARK(shared_prefix_decode)
    ->ArgsProduct({{32}, {32, 8}, {1024, 4096}, {0, 1}})
    ->UseManualTime()
    ->Iterations(7)
    ->Unit(benchmark::kMillisecond);
BENCHMARK(codes_decode)
    ->ArgsProduct({{32}, {32, 8}, {128}, {4096}, {0, 1, 2, 3}})
    ->UseManualTime()
    ->Iterations(5)
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace ops_transformer
