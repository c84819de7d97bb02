// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ops_transformer/base/context.h"

namespace ops_transformer {

/// What a call has to move and to compute, counted once from its shapes.
struct Work {
  std::int64_t bytes = 0;
  std::int64_t flops = 0;
};

/// All calls of one operator with one plan.
struct ProfileTotal {
  std::string op;
  std::string plan;  // empty: the operator has none
  std::int64_t calls = 0;
  double seconds = 0;       // wall time
  double self_seconds = 0;  // without the zones inside
  double bytes = 0, flops = 0;
};

/// Records a zone for each operator call with work of the contexts it is set on (Context::set_profiler), from any
/// thread. Memory is bounded: the trace keeps the latest `max_events` zones, the totals at most kMaxTotals rows.
class OPS_TRANSFORMER_API Profiler {
 public:
  static constexpr std::size_t kMaxTotals = 1024;

  explicit Profiler(std::size_t max_events = std::size_t{1} << 16);
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;

  /// Longest self time first. Past kMaxTotals rows, further plans of an operator are counted under "(other plans)".
  std::vector<ProfileTotal> totals() const;

  /// Totals as text: calls, milliseconds in all and without the zones inside, share of the latter, GB/s and GFLOP/s
  /// over the former.
  std::string table() const;

  /// The kept zones as Chrome trace JSON, which chrome://tracing and ui.perfetto.dev read; times in microseconds.
  std::string trace_json() const;

  /// Writes trace_json to a file. Throws SystemFailure.
  void write_trace(const std::string& path) const;

  /// Zones that the trace no longer holds.
  std::int64_t num_dropped_events() const;
  void clear();

 private:
  friend class Zone;
  struct Event {
    std::size_t total;  // index into totals_
    std::int64_t begin_ns, duration_ns;
    std::int64_t bytes, flops;
    int thread;
  };
  std::size_t total_of(const char* op, std::string_view plan);
  void record(const char* op, std::string_view plan, Work work, std::int64_t begin_ns, std::int64_t end_ns,
              std::int64_t inner_ns) noexcept;

  const std::size_t max_events_;
  mutable std::mutex mutex_;
  std::map<std::pair<std::string, std::string>, std::size_t> index_;
  std::vector<ProfileTotal> totals_;
  std::vector<Event> events_;  // a ring once full
  std::int64_t num_events_ = 0;
};

/// The life of this object is one zone. Costs a load and a branch while no profiler is set.
class OPS_TRANSFORMER_API Zone {
 public:
  /// `op` must outlive the profiler (a literal).
  Zone(const Context& context, const char* op, Work work) : profiler_(context.profiler()) {
    if (profiler_) begin(op, work);
  }
  ~Zone() {
    if (profiler_) end();
  }
  Zone(const Zone&) = delete;
  Zone& operator=(const Zone&) = delete;

  /// make_string() describes the plan; called only while a profiler is set.
  template <class MakeString>
  void plan(MakeString&& make_string) {
    if (profiler_) plan_ = make_string();
  }

 private:
  void begin(const char* op, Work work) noexcept;
  void end() noexcept;

  Profiler* profiler_;
  const char* op_ = nullptr;
  Work work_;
  Zone* outer_ = nullptr;
  std::int64_t begin_ns_ = 0, inner_ns_ = 0;
  std::string plan_;
};

}  // namespace ops_transformer
