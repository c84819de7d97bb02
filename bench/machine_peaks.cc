// SPDX-License-Identifier: Apache-2.0
// What this machine reaches, with nothing of the library in it: register-blocked multiply-adds of the widest kind the
// CPU has, and a pure read of memory that no cache holds. Prints one JSON object. `machine_peaks read` times the read
// alone, to stand beside a memory-bound figure.
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#if defined(__x86_64__)
  #include <immintrin.h>
#endif

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Runs work(thread) on every thread at once; seconds from the common start to the last end.
template <class Work>
double run_on_threads(int num_threads, Work work) {
  std::atomic<int> ready{0};
  std::atomic<bool> go{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < num_threads; ++t) {
    threads.emplace_back([&, t] {
      ready.fetch_add(1);
      while (!go.load()) std::this_thread::yield();
      work(t);
    });
  }
  while (ready.load() < num_threads) std::this_thread::yield();
  const auto start = Clock::now();
  go.store(true);
  for (std::thread& thread : threads) thread.join();
  return seconds_since(start);
}

// The best of several tries, as operations or bytes a second.
template <class Work>
double best_rate(int num_threads, double amount_per_thread, Work work) {
  double best = 0.0;
  for (int i = 0; i < 7; ++i)
    best = std::max(best, amount_per_thread * num_threads / run_on_threads(num_threads, work));
  return best;
}

constexpr std::int64_t kRounds = 10'000'000;
constexpr int kAccumulators = 12;  // two chains of four cycles' latency need eight; twelve leave room

#if defined(__x86_64__)

  // Twelve independent accumulators in registers, operands in registers: the multiply-add units are all that limits it.
  // A loop that fills the array would be a memset, which pins it to memory: half the int8 rate on gcc 12.
  #define PEAK_LOOP(Vector, zero, step)                   \
    Vector c[kAccumulators];                              \
    _Pragma("GCC unroll 12") for (Vector & value : c) {   \
      value = zero;                                       \
      asm("" : "+v"(value));                              \
    }                                                     \
    for (std::int64_t i = 0; i < kRounds; ++i) {          \
      _Pragma("GCC unroll 12") for (Vector & value : c) { \
        value = step;                                     \
        asm("" : "+v"(value));                            \
      }                                                   \
    }                                                     \
    _Pragma("GCC unroll 12") for (Vector & value : c) asm volatile("" : : "v"(value));

__attribute__((target("avx2,fma"))) void f32_avx2() {
  __m256 a = _mm256_set1_ps(0.5f), b = _mm256_set1_ps(0.25f);
  asm("" : "+v"(a), "+v"(b));
  PEAK_LOOP(__m256, _mm256_setzero_ps(), _mm256_fmadd_ps(a, b, value))
}
__attribute__((target("avx512f"))) void f32_avx512() {
  __m512 a = _mm512_set1_ps(0.5f), b = _mm512_set1_ps(0.25f);
  asm("" : "+v"(a), "+v"(b));
  PEAK_LOOP(__m512, _mm512_setzero_ps(), _mm512_fmadd_ps(a, b, value))
}
__attribute__((target("avx512f,avx512bf16"))) void bf16_avx512() {
  __m512i bits = _mm512_set1_epi16(0x3f00);
  asm("" : "+v"(bits));
  const __m512bh a = reinterpret_cast<__m512bh>(bits);
  PEAK_LOOP(__m512, _mm512_setzero_ps(), _mm512_dpbf16_ps(value, a, a))
}
__attribute__((target("avx512f,avx512vnni"))) void int8_avx512() {
  __m512i a = _mm512_set1_epi8(3);
  asm("" : "+v"(a));
  PEAK_LOOP(__m512i, _mm512_setzero_si512(), _mm512_dpbusd_epi32(value, a, a))
}

struct Peak {
  const char* name;
  void (*run)();
  double operations;  // of one vector instruction, a multiply-add counts two
};

std::vector<Peak> peaks() {
  std::vector<Peak> all;
  if (__builtin_cpu_supports("avx512f")) {
    all.push_back({"f32_operations_per_second", f32_avx512, 2 * 16});
    if (__builtin_cpu_supports("avx512bf16")) all.push_back({"bf16_operations_per_second", bf16_avx512, 2 * 32});
    if (__builtin_cpu_supports("avx512vnni")) all.push_back({"int8_operations_per_second", int8_avx512, 2 * 64});
  } else if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    all.push_back({"f32_operations_per_second", f32_avx2, 2 * 8});
  }
  return all;
}

// Eight streams of vector loads; the sum keeps them alive.
__attribute__((target("avx2"))) std::uint64_t read_all(const std::byte* data, std::size_t bytes) {
  __m256i sum = _mm256_setzero_si256();
  for (std::size_t i = 0; i < bytes; i += 256) {
    for (std::size_t j = 0; j < 256; j += 32) {
      sum = _mm256_xor_si256(sum, _mm256_load_si256(reinterpret_cast<const __m256i*>(data + i + j)));
    }
  }
  return std::uint64_t(_mm256_extract_epi64(sum, 0));
}

#else

struct Peak {
  const char* name;
  void (*run)();
  double operations;
};
std::vector<Peak> peaks() { return {}; }

std::uint64_t read_all(const std::byte* data, std::size_t bytes) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < bytes; i += sizeof(sum)) {
    std::uint64_t word;
    std::memcpy(&word, data + i, sizeof(word));
    sum ^= word;
  }
  return sum;
}

#endif

double read_rate(int num_threads) {
  constexpr std::size_t kBytes = std::size_t{256} << 20;  // a thread; well past every cache
  std::vector<std::byte*> blocks;
  for (int t = 0; t < num_threads; ++t) {
    blocks.push_back(static_cast<std::byte*>(std::aligned_alloc(2 << 20, kBytes)));
    madvise(blocks.back(), kBytes, MADV_HUGEPAGE);  // else the walks of small pages are part of the figure
  }
  run_on_threads(num_threads, [&](int t) { std::memset(blocks[t], t + 1, kBytes); });
  std::atomic<std::uint64_t> sink{0};
  const double rate =
      best_rate(num_threads, double(kBytes), [&](int t) { sink.fetch_xor(read_all(blocks[t], kBytes)); });
  for (std::byte* block : blocks) std::free(block);
  return rate;
}

}  // namespace

int main(int argc, char** argv) {
  const bool read_only = argc > 1 && std::string_view(argv[1]) == "read";
  const char* wanted = std::getenv("OPS_TRANSFORMER_NUM_THREADS");
  const int num_threads = wanted ? std::max(1, std::atoi(wanted)) : int(std::thread::hardware_concurrency());
  std::printf("{\"threads\": %d", num_threads);
  if (!read_only) {
    for (const Peak& peak : peaks()) {
      const double operations = double(kRounds) * kAccumulators * peak.operations;
      std::printf(", \"%s\": %.4g", peak.name, best_rate(num_threads, operations, [&](int) { peak.run(); }));
    }
  }
  std::printf(", \"read_bytes_per_second\": %.4g}\n", read_rate(num_threads));
  return 0;
}
