// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <type_traits>

#include "ops_transformer/base/export.h"

namespace ops_transformer {

/// Grows by one in every forked child, where threads and locks of the parent are no more.
OPS_TRANSFORMER_API int fork_generation() noexcept;

/// A fork-join pool for regions of microseconds. Items are claimed from one shared counter, so a worker that wakes late
/// costs nothing: the caller does its items. The caller spins 10 us and yields in turns until the region is done; idle
/// workers spin 30 us, then sleep. One region at a time (Context sees to that); works in a forked child.
class OPS_TRANSFORMER_API ThreadPool {
 public:
  /// The caller counts as one of the threads; num_threads - 1 workers start at the first region that can use them.
  /// Throws InvalidArgument where num_threads is not from 1 to 1024.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const noexcept { return num_threads_; }

  /// Calls body(item, worker) for each item in [0, num_items), in any order; worker in [0, num_threads) is different
  /// for bodies that run at the same time (it picks a scratch buffer). Returns when all are done. A call from inside a
  /// body runs inline, with that body's worker (0 where that is another pool's). The body must not throw.
  template <class Body>
  void run(std::size_t num_items, Body&& body) {
    using Plain = std::remove_reference_t<Body>;
    run_erased(
        num_items, [](void* b, std::size_t item, int worker) { (*static_cast<Plain*>(b))(item, worker); },
        const_cast<std::remove_const_t<Plain>*>(&body));
  }

 private:
  using ErasedBody = void(void* body, std::size_t item, int worker);
  struct Team;

  void run_erased(std::size_t num_items, ErasedBody* call, void* body);
  void start_workers();

  int num_threads_;
  std::unique_ptr<Team> team_;
};

}  // namespace ops_transformer
