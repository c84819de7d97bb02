// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/base/context.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

#include "ops_transformer/base/error.h"
#include "tests/support/sanitizer.h"

namespace ops_transformer {
namespace {

TEST(Context, OptionsAreChecked) {
  EXPECT_THROW(Context({.num_threads = 0}), InvalidArgument);
  EXPECT_THROW(Context({.num_threads = 1025}), InvalidArgument);
  const Context context({.num_threads = 3, .deterministic = true, .isa = Isa::generic});
  EXPECT_EQ(context.num_threads(), 3);
  EXPECT_EQ(context.isa(), Isa::generic);
  EXPECT_TRUE(context.deterministic());
  EXPECT_EQ(Context().isa(), supported_isas().back());
}

TEST(CallScope, WorkspaceIsReusedAndCounted) {
  Context context({.num_threads = 2});
  EXPECT_EQ(context.workspace_high_water_bytes(), 0u);
  std::byte* first = nullptr;
  for (int i = 0; i < 3; ++i) {
    CallScope call(context);
    std::byte* memory = call.arena().allocate_bytes(1000);
    if (i == 0) first = memory;
    EXPECT_EQ(memory, first);
  }
  {
    CallScope call(context), inner(context);
    EXPECT_EQ(call.arena().allocate_bytes(10), first);
    EXPECT_NE(inner.arena().allocate_bytes(10), first);
  }
  EXPECT_EQ(context.workspace_high_water_bytes(), 1024u);
}

TEST(CallScope, NestedScopesShareTheThreads) {
  Context context({.num_threads = 3}), other({.num_threads = 2});
  CallScope call(context);
  EXPECT_EQ(call.num_threads(), 3);
  {
    CallScope elsewhere(other);
    EXPECT_EQ(elsewhere.num_threads(), 2);
  }
  CallScope inner(context);
  EXPECT_EQ(inner.num_threads(), 3);
  std::atomic<int> items{0};
  inner.parallel_for(100, [&](std::size_t, int worker) {
    if (worker < 3) ++items;
  });
  EXPECT_EQ(items, 100);
}

TEST(CallScope, ASecondCallerRunsAlone) {
  Context context({.num_threads = 3});
  CallScope call(context);
  std::thread([&] {
    CallScope second(context);
    EXPECT_EQ(second.num_threads(), 1);
    const auto self = std::this_thread::get_id();
    second.parallel_for(10, [&](std::size_t, int worker) {
      EXPECT_EQ(worker, 0);
      EXPECT_EQ(std::this_thread::get_id(), self);
    });
  }).join();
}

TEST(CallScope, ManyCallersOfOneContext) {
  Context context({.num_threads = 2});
  std::atomic<int> wrong{0};
  std::vector<std::thread> callers;
  for (int t = 0; t < 4; ++t) {
    callers.emplace_back([&, t] {
      for (int round = 0; round < 300; ++round) {
        CallScope call(context);
        auto sums = call.arena().allocate<std::int64_t>(16);
        call.parallel_for(16, [&](std::size_t item, int) { sums[item] = std::int64_t(item) * t + round; });
        for (std::size_t i = 0; i < 16; ++i) wrong += sums[i] != std::int64_t(i) * t + round;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(wrong, 0);
  CallScope after(context);
  EXPECT_EQ(after.num_threads(), 2);
}

// Another thread holds the context while this one forks.
TEST(CallScope, AChildForkedDuringACallHasItsThreads) {
  if (test::kThreadSanitizer) GTEST_SKIP();
  Context context({.num_threads = 2});
  std::atomic<int> stage{0};
  std::thread holder([&] {
    CallScope call(context);
    stage = 1;
    while (stage != 2) std::this_thread::yield();
  });
  while (stage != 1) std::this_thread::yield();
  const pid_t child = fork();
  if (child == 0) {
    alarm(5);
    CallScope call(context);
    std::atomic<int> items{0};
    call.parallel_for(50, [&](std::size_t, int) { ++items; });
    _exit(call.num_threads() == 2 && items == 50 ? 0 : 1);
  }
  stage = 2;
  holder.join();
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
}

// Else each would grow to the largest size that either needs.
TEST(Context, NestedCallsKeepTheirArenas) {
  Context context({.num_threads = 1});
  const Arena *outer_arena = nullptr, *inner_arena = nullptr;
  for (int round = 0; round < 3; ++round) {
    CallScope outer(context);
    for (int i = 0; i < 2; ++i) {
      CallScope inner(context);
      if (!outer_arena) {
        outer_arena = &outer.arena();
        inner_arena = &inner.arena();
      }
      EXPECT_EQ(&outer.arena(), outer_arena);
      EXPECT_EQ(&inner.arena(), inner_arena);
    }
  }
}

}  // namespace
}  // namespace ops_transformer
