// SPDX-License-Identifier: Apache-2.0
// What a parallel region costs: hot, and after the threads have slept. Rows of bench/bars.toml read these.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

#include "ops_transformer/base/cpu_count.h"
#include "ops_transformer/base/thread_pool.h"

namespace ops_transformer {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

void busy(double seconds) {
  const auto start = Clock::now();
  while (seconds_since(start) < seconds) {
  }
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + std::ptrdiff_t(values.size() / 2), values.end());
  return values[values.size() / 2];
}

// An empty region for every thread, one after the other.
void hot_region(benchmark::State& state) {
  ThreadPool pool(default_num_threads());
  const auto items = std::size_t(pool.num_threads());
  for (auto _ : state) {
    pool.run(items, [](std::size_t item, int) { benchmark::DoNotOptimize(item); });
  }
}
BENCHMARK(hot_region)->UseRealTime();

// The same with 1 us of work for every thread: `over_work_ns` is what the region adds to it.
void hot_region_of_1us(benchmark::State& state) {
  ThreadPool pool(default_num_threads());
  const auto items = std::size_t(pool.num_threads());
  std::vector<double> times;
  for (auto _ : state) {
    const auto start = Clock::now();
    pool.run(items, [](std::size_t, int) { busy(1e-6); });
    const double seconds = seconds_since(start);
    state.SetIterationTime(seconds);
    times.push_back(seconds);
  }
  state.counters["over_work_ns"] = (median(times) - 1e-6) * 1e9;
}
BENCHMARK(hot_region_of_1us)->UseManualTime();

// Eight items of 25 us after 20 ms idle: `over_hot_us` is the median of what that costs over the same region hot.
void region_after_idle(benchmark::State& state) {
  ThreadPool pool(default_num_threads());
  const auto region = [&] {
    const auto start = Clock::now();
    pool.run(8, [](std::size_t, int) { busy(25e-6); });
    return seconds_since(start);
  };
  std::vector<double> hot, idle;
  for (auto _ : state) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const double seconds = region();
    state.SetIterationTime(seconds);
    idle.push_back(seconds);
    hot.push_back(region());
  }
  state.counters["over_hot_us"] = (median(idle) - median(hot)) * 1e6;
  state.counters["worst_over_hot_us"] = (*std::max_element(idle.begin(), idle.end()) - median(hot)) * 1e6;
}
BENCHMARK(region_after_idle)->UseManualTime()->Iterations(50);

}  // namespace
}  // namespace ops_transformer
