// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/base/thread_pool.h"

#include <fmt/format.h>
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "ops_transformer/base/error.h"

namespace ops_transformer {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kJoinSpin = std::chrono::microseconds(10);
constexpr auto kIdleSpin = std::chrono::microseconds(30);

// Read when the library is loaded: a thread made later may have inherited a narrower mask (OpenMP pins its master).
const cpu_set_t kProcessCpus = [] {
  cpu_set_t cpus;
  if (sched_getaffinity(0, sizeof cpus, &cpus) != 0) {
    CPU_ZERO(&cpus);
    CPU_SET(0, &cpus);
  }
  return cpus;
}();

// Threads of the parent don't exist in a forked child; a pool that sees another generation starts its own.
std::atomic<int> fork_generation{0};
[[maybe_unused]] const int kForkHandler =
    pthread_atfork(nullptr, nullptr, [] { fork_generation.fetch_add(1, std::memory_order_relaxed); });

thread_local bool inside_region = false;

void relax() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

// Spins on `done` until it holds or `limit` has passed; reads the clock once in 64 rounds.
template <class Done>
bool spin_until(Done done, Clock::duration limit) {
  const auto end = Clock::now() + limit;
  while (true) {
    for (int i = 0; i < 64; ++i) {
      if (done()) return true;
      relax();
    }
    if (Clock::now() >= end) return false;
  }
}

// CPUs' worth of time that the cgroup (v2, then v1) grants; infinity without a quota.
double cgroup_cpus() {
  double quota = -1, period = 0;
  if (std::ifstream v2("/sys/fs/cgroup/cpu.max"); v2) {
    std::string word;
    if (v2 >> word >> period && word != "max") quota = std::strtod(word.c_str(), nullptr);
  } else {
    std::ifstream quota_file("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"),
        period_file("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
    if (!(quota_file >> quota && period_file >> period)) quota = -1;
  }
  return quota > 0 && period > 0 ? quota / period : std::numeric_limits<double>::infinity();
}

}  // namespace

int default_num_threads() {
  if (const char* wanted = std::getenv("OPS_TRANSFORMER_NUM_THREADS"); wanted && *wanted) {
    const std::string_view text = wanted;
    int value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value < 1 || value > 1024) {
      throw InvalidArgument(fmt::format("OPS_TRANSFORMER_NUM_THREADS is '{}', must be a number from 1 to 1024", text));
    }
    return value;
  }
  const double cpus = std::min(double(CPU_COUNT(&kProcessCpus)), cgroup_cpus());
  return std::max(1, int(cpus + 0.5));
}

// The claim word holds (generation << 32 | items left). A successful compare-exchange that takes one item proves that
// the region of that generation is still open, so its fields can be read: the caller can't return before the item is
// done.
struct ThreadPool::Shared {
  alignas(64) std::atomic<std::uint64_t> claim{0};
  std::atomic<std::size_t> num_items{0};
  std::atomic<ErasedBody*> call{nullptr};
  std::atomic<void*> body{nullptr};
  alignas(64) std::atomic<std::size_t> undone{0};
  alignas(64) std::atomic<std::uint32_t> epoch{0};  // what sleepers wait on
  std::atomic<int> sleepers{0};
  std::atomic<bool> stopping{false};
  int generation_of_fork = fork_generation.load(std::memory_order_relaxed);

  bool claim_item(std::size_t& item) noexcept {
    std::uint64_t word = claim.load(std::memory_order_acquire);
    while (std::uint32_t(word) != 0) {
      if (claim.compare_exchange_weak(word, word - 1, std::memory_order_acq_rel, std::memory_order_acquire)) {
        item = num_items.load(std::memory_order_relaxed) - std::uint32_t(word);
        return true;
      }
    }
    return false;
  }

  void run_item(std::size_t item, int worker) noexcept {
    call.load(std::memory_order_relaxed)(body.load(std::memory_order_relaxed), item, worker);
    undone.fetch_sub(1, std::memory_order_acq_rel);
  }

  void work(int worker) noexcept {
    inside_region = true;
    std::size_t item;
    while (claim_item(item)) run_item(item, worker);
    inside_region = false;
  }

  // Starts to fetch what the body captured while the claim is still on its way.
  void prefetch_body() const noexcept {
    const char* captures = static_cast<const char*>(body.load(std::memory_order_relaxed));
    for (int line = 0; line < 4; ++line) __builtin_prefetch(captures + line * 64);
  }

  void serve(int worker) noexcept {
    pthread_setaffinity_np(pthread_self(), sizeof kProcessCpus, &kProcessCpus);
    while (!stopping.load(std::memory_order_acquire)) {
      const auto has_work = [this] { return std::uint32_t(claim.load()) != 0 || stopping.load(); };
      if (spin_until(has_work, kIdleSpin)) {
        prefetch_body();
        work(worker);
        continue;
      }
      const std::uint32_t seen = epoch.load();
      sleepers.fetch_add(1);
      if (!has_work()) epoch.wait(seen);
      sleepers.fetch_sub(1);
    }
  }

  void wake() noexcept {
    if (sleepers.load() > 0) {
      epoch.fetch_add(1);
      epoch.notify_all();
    }
  }
};

ThreadPool::ThreadPool(int num_threads) : num_threads_(num_threads), shared_(std::make_unique<Shared>()) {
  if (num_threads < 1 || num_threads > 1024) {
    throw InvalidArgument(fmt::format("num_threads is {}, must be from 1 to 1024", num_threads));
  }
}

ThreadPool::~ThreadPool() {
  if (workers_.empty()) return;
  if (shared_->generation_of_fork != fork_generation.load(std::memory_order_relaxed)) {
    forget_workers();
    return;
  }
  shared_->stopping.store(true);
  shared_->epoch.fetch_add(1);
  shared_->epoch.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::forget_workers() {
  // They live in the parent alone, so they can be neither joined nor detached (ESRCH), and a joinable std::thread that
  // is destroyed ends the process. What they read has whatever state it had at the fork.
  if (!workers_.empty()) new std::vector<std::thread>(std::move(workers_));
  workers_.clear();
  shared_.release();
}

void ThreadPool::start_workers() {
  if (shared_->generation_of_fork != fork_generation.load(std::memory_order_relaxed)) {
    forget_workers();
    shared_ = std::make_unique<Shared>();
  }
  if (!workers_.empty()) return;
  try {
    for (int i = 1; i < num_threads_; ++i) {
      workers_.emplace_back([shared = shared_.get(), i] { shared->serve(i); });
    }
  } catch (const std::system_error&) {
    // The process may have no more threads: the ones there are, or the caller alone, do the work.
  }
}

void ThreadPool::run_erased(std::size_t num_items, ErasedBody* call, void* body) {
  const bool nested = inside_region;
  if (num_threads_ == 1 || num_items <= 1 || nested || num_items > 0xffffffffu) {
    inside_region = true;
    for (std::size_t item = 0; item < num_items; ++item) call(body, item, 0);
    inside_region = nested;
    return;
  }
  start_workers();
  Shared& shared = *shared_;
  shared.num_items.store(num_items, std::memory_order_relaxed);
  shared.call.store(call, std::memory_order_relaxed);
  shared.body.store(body, std::memory_order_relaxed);
  shared.undone.store(num_items, std::memory_order_relaxed);
  const std::uint64_t generation = (shared.claim.load(std::memory_order_relaxed) >> 32) + 1;
  // The first item is the caller's without a claim.
  shared.claim.store(generation << 32 | (num_items - 1));
  shared.wake();
  inside_region = true;
  shared.run_item(0, 0);
  shared.work(0);
  const auto done = [&shared] { return shared.undone.load(std::memory_order_acquire) == 0; };
  while (!spin_until(done, kJoinSpin)) sched_yield();
}

}  // namespace ops_transformer
