// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/base/thread_pool.h"

#include <fmt/format.h>
#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <system_error>
#include <thread>
#include <vector>

#include "ops_transformer/base/cpu_count.h"
#include "ops_transformer/base/error.h"

namespace ops_transformer {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kJoinSpin = std::chrono::microseconds(10);
constexpr auto kIdleSpin = std::chrono::microseconds(30);

std::atomic<int> forks{0};
[[maybe_unused]] const int kForkHandler =
    pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); });

// The body that this thread is inside: its pool (nullptr: none) and worker.
struct Inside {
  const void* pool = nullptr;
  int worker = 0;
};
thread_local Inside inside;

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

}  // namespace

int fork_generation() noexcept { return forks.load(std::memory_order_relaxed); }

// Workers and what they read. A forked child abandons the parent's: its threads are not there, can be neither joined
// nor detached, and their stacks may by now belong to other threads.
struct ThreadPool::Team {
  // Items of the region that nobody has claimed. Taking one by compare-exchange proves that a region is open and that
  // its fields, written before the counter, can be read: the caller doesn't return before that item is done. They share
  // its cache line, so that the claim brings them along.
  alignas(64) std::atomic<std::size_t> unclaimed{0};
  std::size_t num_items = 0;
  ErasedBody* call = nullptr;
  std::atomic<void*> body{nullptr};
  alignas(64) std::atomic<std::size_t> undone{0};
  alignas(64) std::atomic<std::uint32_t> epoch{0};  // what sleepers wait on
  std::atomic<int> sleepers{0};
  std::atomic<bool> stopping{false};

  const void* pool;
  const int generation = fork_generation();
  std::vector<std::thread> workers;

  Team(const void* its_pool, int num_workers) : pool(its_pool) { workers.reserve(std::size_t(num_workers)); }
  ~Team() {
    if (workers.empty()) return;
    stopping.store(true);
    epoch.fetch_add(1);
    epoch.notify_all();
    for (std::thread& worker : workers) worker.join();
  }

  bool claim(std::size_t& item) noexcept {
    std::size_t left = unclaimed.load(std::memory_order_relaxed);
    while (left != 0) {
      if (unclaimed.compare_exchange_weak(left, left - 1, std::memory_order_acquire, std::memory_order_relaxed)) {
        item = num_items - left;
        return true;
      }
    }
    return false;
  }

  // Claims items until there are none; `done` of them are done already.
  void work(int worker, std::size_t done) noexcept {
    std::size_t item;
    for (; claim(item); ++done) call(body.load(std::memory_order_relaxed), item, worker);
    if (done) undone.fetch_sub(done, std::memory_order_release);
  }

  // Starts to fetch what the body captured while the claim is still on its way.
  void prefetch_body() const noexcept {
    const char* captures = static_cast<const char*>(body.load(std::memory_order_relaxed));
    for (int line = 0; line < 4; ++line) __builtin_prefetch(captures + line * 64);
  }

  void serve(int worker) noexcept {
    use_process_cpus();
    inside = {pool, worker};
    const auto wanted = [this] { return unclaimed.load() != 0 || stopping.load(); };
    while (!stopping.load(std::memory_order_relaxed)) {
      if (spin_until(wanted, kIdleSpin)) {
        prefetch_body();
        work(worker, 0);
        continue;
      }
      // Either the caller sees this sleeper, or this worker sees its items: both write before they read, in the one
      // order of sequentially consistent operations.
      const std::uint32_t seen = epoch.load();
      sleepers.fetch_add(1);
      if (!wanted()) epoch.wait(seen);
      sleepers.fetch_sub(1);
    }
  }

  void open(std::size_t count, ErasedBody* its_call, void* its_body) noexcept {
    num_items = count;
    call = its_call;
    body.store(its_body, std::memory_order_relaxed);
    undone.store(count, std::memory_order_relaxed);
    unclaimed.store(count - 1);  // the caller has the first one without a claim
    const auto asleep = std::size_t(sleepers.load());
    if (asleep == 0) return;
    epoch.fetch_add(1);
    if (count - 1 >= asleep) {
      epoch.notify_all();
    } else {
      for (std::size_t i = 1; i < count; ++i) epoch.notify_one();
    }
  }

  void join() noexcept {
    const auto done = [this] { return undone.load(std::memory_order_acquire) == 0; };
    while (!spin_until(done, kJoinSpin)) sched_yield();
  }
};

ThreadPool::ThreadPool(int num_threads) : num_threads_(num_threads) {
  if (num_threads < 1 || num_threads > 1024) {
    throw InvalidArgument(fmt::format("num_threads is {}, must be from 1 to 1024", num_threads));
  }
}

ThreadPool::~ThreadPool() {
  if (team_ && team_->generation != fork_generation()) static_cast<void>(team_.release());
}

void ThreadPool::start_workers() {
  if (team_ && team_->generation == fork_generation()) return;
  static_cast<void>(team_.release());
  team_ = std::make_unique<Team>(this, num_threads_ - 1);
  try {
    for (int i = 1; i < num_threads_; ++i) {
      team_->workers.emplace_back([team = team_.get(), i] { team->serve(i); });
    }
  } catch (const std::system_error&) {
    // The process may have no more threads: the ones there are, or the caller alone, do the work.
  }
}

void ThreadPool::run_erased(std::size_t num_items, ErasedBody* call, void* body) {
  if (num_threads_ == 1 || num_items <= 1 || inside.pool) {
    const Inside outer = inside;
    inside = {this, outer.pool == this ? outer.worker : 0};
    for (std::size_t item = 0; item < num_items; ++item) call(body, item, inside.worker);
    inside = outer;
    return;
  }
  start_workers();
  team_->open(num_items, call, body);
  inside = {this, 0};
  call(body, 0, 0);
  team_->work(0, 1);
  inside = {};
  team_->join();
}

}  // namespace ops_transformer
