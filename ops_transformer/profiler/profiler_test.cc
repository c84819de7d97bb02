// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/profiler/profiler.h"

#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "ops_transformer/base/error.h"

namespace ops_transformer {
namespace {

void wait_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

TEST(Profiler, RecordsNothingWhenOff) {
  Context context({.num_threads = 1});
  Profiler profiler;
  bool described = false;
  {
    Zone zone(context, "matmul", {1, 2});
    zone.plan([&] {
      described = true;
      return std::string("plan");
    });
  }
  EXPECT_FALSE(described);
  EXPECT_TRUE(profiler.totals().empty());
}

TEST(Profiler, SumsCallsOfOnePlan) {
  Context context({.num_threads = 1});
  Profiler profiler;
  context.set_profiler(&profiler);
  for (int i = 0; i < 3; ++i) {
    Zone zone(context, "matmul", {1000, 2000});
    zone.plan([] { return std::string("stream"); });
  }
  {
    Zone zone(context, "matmul", {1, 2});
  }
  std::int64_t calls = 0;
  for (const ProfileTotal& total : profiler.totals()) {
    EXPECT_EQ(total.op, "matmul");
    if (total.plan != "stream") continue;
    calls = total.calls;
    EXPECT_EQ(total.bytes, 3000);
    EXPECT_EQ(total.flops, 6000);
  }
  EXPECT_EQ(calls, 3);
  EXPECT_EQ(profiler.totals().size(), 2u);
  EXPECT_NE(profiler.table().find("stream"), std::string::npos);
  context.set_profiler(nullptr);
  {
    Zone zone(context, "matmul", {});
  }
  EXPECT_EQ(profiler.totals().size(), 2u);
  profiler.clear();
  EXPECT_TRUE(profiler.totals().empty());
}

TEST(Profiler, InnerZonesDontCountTwice) {
  Context context({.num_threads = 1});
  Profiler profiler;
  context.set_profiler(&profiler);
  {
    Zone outer(context, "block", {});
    Zone inner(context, "norm", {});
    wait_ms(5);
  }
  const auto totals = profiler.totals();
  ASSERT_EQ(totals.size(), 2u);
  EXPECT_EQ(totals[0].op, "norm");
  EXPECT_GE(totals[1].seconds, totals[0].seconds);
  EXPECT_LT(totals[1].self_seconds, 0.5 * totals[0].seconds);
}

TEST(Profiler, TraceIsJson) {
  Context context({.num_threads = 1});
  Profiler profiler;
  context.set_profiler(&profiler);
  {
    Zone outer(context, "block", {});
    outer.plan([] { return std::string("tile \"64x32\"\\\n\x01"); });
    Zone inner(context, "norm", {12, 34});
  }
  const std::string path = testing::TempDir() + "profiler_trace.json";
  profiler.write_trace(path);
  std::ifstream file(path);
  const auto trace = nlohmann::json::parse(file);
  const auto& events = trace.at("traceEvents");
  ASSERT_EQ(events.size(), 2u);
  const auto &inner = events[0], &outer = events[1];
  EXPECT_EQ(inner.at("name"), "norm");
  EXPECT_EQ(inner.at("ph"), "X");
  EXPECT_EQ(inner.at("args").at("bytes"), 12);
  EXPECT_EQ(inner.at("args").at("flops"), 34);
  EXPECT_EQ(outer.at("args").at("plan"), "tile \"64x32\"\\\n\x01");
  EXPECT_EQ(outer.at("tid"), inner.at("tid"));
  EXPECT_LE(outer.at("ts").get<double>(), inner.at("ts").get<double>());
  EXPECT_GE(outer.at("ts").get<double>() + outer.at("dur").get<double>(),
            inner.at("ts").get<double>() + inner.at("dur").get<double>());
  EXPECT_THROW(profiler.write_trace("/no/such/folder/trace.json"), SystemFailure);
}

TEST(Profiler, EmptyTraceIsJson) {
  EXPECT_TRUE(nlohmann::json::parse(Profiler().trace_json()).at("traceEvents").empty());
}

TEST(Profiler, MemoryIsBounded) {
  Context context({.num_threads = 1});
  Profiler profiler(8);
  context.set_profiler(&profiler);
  for (int i = 0; i < 3000; ++i) {
    Zone zone(context, "matmul", {i, 0});
    zone.plan([&] { return std::to_string(i); });
  }
  EXPECT_LE(profiler.totals().size(), Profiler::kMaxTotals);
  EXPECT_EQ(profiler.num_dropped_events(), 2992);
  std::int64_t calls = 0;
  for (const ProfileTotal& total : profiler.totals()) calls += total.calls;
  EXPECT_EQ(calls, 3000);
  const auto trace = nlohmann::json::parse(profiler.trace_json());
  EXPECT_EQ(trace.at("traceEvents").size(), 8u);
  for (const auto& event : trace.at("traceEvents")) EXPECT_GE(event.at("args").at("bytes"), 2992);
}

TEST(Profiler, CountsCallsFromSeveralThreads) {
  Context context({.num_threads = 1});
  Profiler profiler(64);
  context.set_profiler(&profiler);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) {
        Zone zone(context, "norm", {1, 1});
        zone.plan([&] { return std::to_string(i % 3); });
      }
    });
  }
  for (int i = 0; i < 20; ++i) static_cast<void>(profiler.trace_json());
  for (std::thread& thread : threads) thread.join();
  std::int64_t calls = 0;
  for (const ProfileTotal& total : profiler.totals()) calls += total.calls;
  EXPECT_EQ(calls, 2000);
}

}  // namespace
}  // namespace ops_transformer
