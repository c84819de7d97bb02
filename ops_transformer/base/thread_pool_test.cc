// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/base/thread_pool.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <iterator>
#include <numeric>
#include <thread>
#include <vector>

#include "ops_transformer/base/error.h"
#include "tests/support/sanitizer.h"

namespace ops_transformer {
namespace {

std::int64_t num_process_threads() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"), std::filesystem::directory_iterator());
}

// A thread that has been joined stands in the list a moment longer, under an emulator for milliseconds.
std::int64_t num_settled_threads() {
  std::int64_t count = num_process_threads();
  for (int unchanged = 0; unchanged < 3;) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    const std::int64_t now = num_process_threads();
    unchanged = now == count ? unchanged + 1 : 0;
    count = now;
  }
  return count;
}

TEST(ThreadPool, RunsEachItemOnce) {
  for (int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    for (std::size_t count = 0; count <= 1000; count += count < 20 ? 1 : 49) {
      std::vector<std::atomic<int>> runs(count);
      std::atomic<bool> worker_in_range{true};
      pool.run(count, [&](std::size_t item, int worker) {
        runs[item].fetch_add(1);
        if (worker < 0 || worker >= threads) worker_in_range = false;
      });
      for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(runs[i], 1) << i << " of " << count << ", " << threads;
      EXPECT_TRUE(worker_in_range);
    }
  }
}

TEST(ThreadPool, BodiesAtTheSameTimeHaveDifferentWorkers) {
  ThreadPool pool(4);
  std::vector<std::atomic<bool>> busy(4);
  std::atomic<int> clashes{0};
  for (int round = 0; round < 50; ++round) {
    pool.run(64, [&](std::size_t, int worker) {
      if (busy[std::size_t(worker)].exchange(true)) ++clashes;
      for (int i = 0; i < 200; ++i) std::atomic_signal_fence(std::memory_order_seq_cst);
      busy[std::size_t(worker)] = false;
    });
  }
  EXPECT_EQ(clashes, 0);
}

// Plain memory: the sanitizers see whether a region's end orders the bodies before the caller.
TEST(ThreadPool, ManyQuickRegionsSeeEachOthersWrites) {
  for (int threads : {2, 3}) {
    ThreadPool pool(threads);
    std::vector<std::int64_t> values(7, 0);
    for (int round = 0; round < 20000; ++round) {
      pool.run(values.size(), [&](std::size_t item, int) { values[item] += std::int64_t(item) + 1; });
    }
    EXPECT_EQ(std::accumulate(values.begin(), values.end(), std::int64_t{0}), 20000 * 28);
  }
}

TEST(ThreadPool, WakesSleepers) {
  ThreadPool pool(3);
  for (int round = 0; round < 30; ++round) {
    std::this_thread::sleep_for(std::chrono::microseconds(round * 20));
    std::atomic<int> items{0};
    pool.run(5, [&](std::size_t, int) { ++items; });
    EXPECT_EQ(items, 5);
  }
}

TEST(ThreadPool, NestedRunsInlineWithTheSameWorker) {
  ThreadPool pool(3), other(2);
  std::atomic<int> items{0}, wrong{0};
  pool.run(8, [&](std::size_t, int worker) {
    const auto thread = std::this_thread::get_id();
    pool.run(5, [&](std::size_t, int inner) {
      ++items;
      if (inner != worker || std::this_thread::get_id() != thread) ++wrong;
    });
    other.run(5, [&](std::size_t, int inner) {
      ++items;
      if (inner != 0 || std::this_thread::get_id() != thread) ++wrong;
    });
  });
  EXPECT_EQ(items, 80);
  EXPECT_EQ(wrong, 0);
}

TEST(ThreadPool, EndsWhileIdleOrUnused) {
  for (int round = 0; round < 40; ++round) {
    ThreadPool pool(4);
    if (round % 2) pool.run(4, [](std::size_t, int) {});
    if (round % 4 == 3) std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

TEST(ThreadPool, OneThreadStartsNone) {
  const auto before = num_settled_threads();
  ThreadPool pool(1);
  const auto caller = std::this_thread::get_id();
  for (int i = 0; i < 100; ++i) {
    pool.run(10, [&](std::size_t, int worker) {
      EXPECT_EQ(worker, 0);
      EXPECT_EQ(std::this_thread::get_id(), caller);
    });
    EXPECT_EQ(num_process_threads(), before);
  }
}

TEST(ThreadPool, WorkersStartAtTheFirstRegion) {
  const auto before = num_settled_threads();
  ThreadPool pool(3);
  pool.run(1, [](std::size_t, int) {});
  EXPECT_EQ(num_process_threads(), before);
  pool.run(2, [](std::size_t, int) {});
  EXPECT_EQ(num_process_threads(), before + 2);
}

TEST(ThreadPool, RejectsBadThreadCounts) {
  EXPECT_THROW(ThreadPool(0), InvalidArgument);
  EXPECT_THROW(ThreadPool(-1), InvalidArgument);
  EXPECT_THROW(ThreadPool(1025), InvalidArgument);
}

// The pool is used, forgotten and replaced in the child, where a second pool's threads may get the stacks of
// the first one's.
TEST(ThreadPool, WorksInAForkedChild) {
  if (test::kThreadSanitizer) GTEST_SKIP();
  ThreadPool pool(4);
  std::vector<int> values(1000, 0);
  const auto add = [&](ThreadPool& used) {
    used.run(values.size(), [&](std::size_t item, int) { values[item] += int(item); });
  };
  add(pool);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(5);  // ends a child that hangs
    ThreadPool own(4);
    add(own);
    add(pool);
    {
      ThreadPool third(4);
      add(third);
    }
    bool good = fork_generation() == 1;
    for (std::size_t i = 0; i < values.size(); ++i) good &= values[i] == 4 * int(i);
    _exit(good ? 0 : 1);
  }
  add(pool);
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
  EXPECT_EQ(values[999], 2 * 999);
}

}  // namespace
}  // namespace ops_transformer
