// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "ops_transformer/base/cpu_count.h"
#include "ops_transformer/base/export.h"
#include "ops_transformer/base/isa.h"
#include "ops_transformer/base/memory.h"
#include "ops_transformer/base/thread_pool.h"

namespace ops_transformer {

class Profiler;

struct ContextOptions {
  std::optional<int> num_threads{};  // unset: default_num_threads()
  bool deterministic = false;        // bit-identical results for any thread count, chunking and batch neighbours
  std::optional<Isa> isa{};          // highest instruction-set level to use; unset: the best that runs here
};

/// What a call runs on: threads, workspace, instruction-set level, profiler. A Context serves one call at a time with
/// its threads; calls from other threads meanwhile run on their own thread alone.
class OPS_TRANSFORMER_API Context {
 public:
  /// Throws InvalidArgument (num_threads not in 1…1024, isa that doesn't run here).
  explicit Context(const ContextOptions& options = {});
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  int num_threads() const noexcept { return pool_.num_threads(); }
  Isa isa() const noexcept { return isa_; }
  bool deterministic() const noexcept { return deterministic_; }

  /// Not owned; nullptr: off. Set between calls.
  void set_profiler(Profiler* profiler) noexcept { profiler_ = profiler; }
  Profiler* profiler() const noexcept { return profiler_; }

  /// The most workspace bytes that one call has used.
  std::size_t workspace_high_water_bytes() const noexcept { return high_water_bytes_.load(std::memory_order_relaxed); }

  /// The one of Python calls that give none.
  static Context& process_default();

 private:
  friend class CallScope;
  std::unique_ptr<Arena> take_arena();
  void give_back(std::unique_ptr<Arena> arena) noexcept;
  bool try_hold_threads() noexcept;

  static constexpr int kFree = -1;

  ThreadPool pool_;
  Isa isa_;
  bool deterministic_;
  Profiler* profiler_ = nullptr;
  // No mutex: one that is locked while another thread forks stays locked in the child.
  std::atomic<int> threads_held_{kFree};  // else the fork_generation of the process whose call holds them
  std::array<std::atomic<Arena*>, 16> idle_arenas_{};
  std::atomic<std::size_t> high_water_bytes_{0};
};

/// One call of an operator: leases an arena and, where they are free, the threads. Operators nest: a scope opened by
/// the thread that already holds one shares that scope's threads.
class OPS_TRANSFORMER_API CallScope {
 public:
  explicit CallScope(Context& context);
  ~CallScope();
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;

  Context& context() noexcept { return context_; }
  Arena& arena() noexcept { return *arena_; }

  /// Threads that parallel_for will use: 1 where another call holds them.
  int num_threads() const noexcept { return has_threads_ ? context_.num_threads() : 1; }

  /// body(item, worker): see ThreadPool::run. worker < num_threads().
  template <class Body>
  void parallel_for(std::size_t num_items, Body&& body) {
    if (has_threads_) {
      context_.pool_.run(num_items, body);
    } else {
      for (std::size_t item = 0; item < num_items; ++item) body(item, 0);
    }
  }

  /// body(first, last, worker) for rows [first, last), some tens of thousands of elements at a time; at least one row.
  template <class Body>
  void parallel_rows(std::int64_t num_rows, std::int64_t elements_per_row, Body&& body) {
    const std::int64_t rows_per_item =
        std::max<std::int64_t>(1, kElementsPerItem / std::max<std::int64_t>(1, elements_per_row));
    parallel_for(std::size_t((num_rows + rows_per_item - 1) / rows_per_item), [&](std::size_t item, int worker) {
      const std::int64_t first = std::int64_t(item) * rows_per_item;
      body(first, std::min(num_rows, first + rows_per_item), worker);
    });
  }

 private:
  // Below this many elements an item costs more to hand over than it saves.
  static constexpr std::int64_t kElementsPerItem = 16384;

  Context& context_;
  std::unique_ptr<Arena> arena_;
  const Context* outer_;  // whose threads this thread held before
  bool has_threads_;
  bool owns_threads_;
};

}  // namespace ops_transformer
