// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/profiler/profiler.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iterator>

#include "ops_transformer/base/error.h"

namespace ops_transformer {
namespace {

constexpr const char* kOtherPlans = "(other plans)";

// The zone that this thread is inside, for the time that inner zones take from outer ones.
thread_local Zone* current_zone = nullptr;

std::int64_t now_ns() noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

std::string json_string(std::string_view text) {
  std::string json = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      json += '\\';
      json += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      json += fmt::format("\\u{:04x}", static_cast<unsigned char>(c));
    } else {
      json += c;
    }
  }
  return json + '"';
}

}  // namespace

Profiler::Profiler(std::size_t max_events) : max_events_(max_events) {}

std::size_t Profiler::total_of(const char* op, std::string_view plan) {
  std::pair<std::string, std::string> key(op, plan);
  if (const auto found = index_.find(key); found != index_.end()) return found->second;
  // Half of the rows are for plans, so that operators seen later still find one each.
  if (!plan.empty() && plan != kOtherPlans && totals_.size() >= kMaxTotals / 2) return total_of(op, kOtherPlans);
  if (totals_.size() >= kMaxTotals - 1 && key.first != "(other)") return total_of("(other)", "");
  totals_.push_back({.op = key.first, .plan = key.second});
  index_.emplace(std::move(key), totals_.size() - 1);
  return totals_.size() - 1;
}

// Out of memory loses the zone, never the call.
void Profiler::record(const char* op, std::string_view plan, Work work, std::int64_t begin_ns, std::int64_t end_ns,
                      std::int64_t inner_ns) noexcept try {
  std::lock_guard lock(mutex_);
  const std::size_t row = total_of(op, plan);
  ProfileTotal& total = totals_[row];
  const std::int64_t duration_ns = end_ns - begin_ns;
  ++total.calls;
  total.seconds += double(duration_ns) * 1e-9;
  total.self_seconds += double(duration_ns - inner_ns) * 1e-9;
  total.bytes += double(work.bytes);
  total.flops += double(work.flops);
  const Event event{row, begin_ns, duration_ns, work.bytes, work.flops, int(gettid())};
  if (events_.size() < max_events_) {
    events_.push_back(event);
  } else if (max_events_) {
    events_[std::size_t(num_events_) % max_events_] = event;
  }
  ++num_events_;
} catch (...) {
}

std::vector<ProfileTotal> Profiler::totals() const {
  std::vector<ProfileTotal> sorted;
  {
    std::lock_guard lock(mutex_);
    sorted = totals_;
  }
  std::ranges::sort(sorted, std::ranges::greater(), &ProfileTotal::self_seconds);
  return sorted;
}

std::string Profiler::table() const {
  const auto rows = totals();
  double all = 0;
  std::size_t op_width = 8, plan_width = 4;
  for (const ProfileTotal& row : rows) {
    all += row.self_seconds;
    op_width = std::max(op_width, row.op.size());
    plan_width = std::max(plan_width, row.plan.size());
  }
  std::string text;
  const auto out = std::back_inserter(text);
  fmt::format_to(out, "{:<{}}  {:<{}}  {:>8}  {:>10}  {:>10}  {:>6}  {:>7}  {:>8}\n", "operator", op_width, "plan",
                 plan_width, "calls", "total ms", "self ms", "self %", "GB/s", "GFLOP/s");
  for (const ProfileTotal& row : rows) {
    const double per_second = row.seconds > 0 ? 1e-9 / row.seconds : 0;
    fmt::format_to(out, "{:<{}}  {:<{}}  {:>8}  {:>10.3f}  {:>10.3f}  {:>6.1f}  {:>7.1f}  {:>8.1f}\n", row.op, op_width,
                   row.plan, plan_width, row.calls, row.seconds * 1e3, row.self_seconds * 1e3,
                   all > 0 ? 100 * row.self_seconds / all : 0.0, row.bytes * per_second, row.flops * per_second);
  }
  return text;
}

std::string Profiler::trace_json() const {
  std::lock_guard lock(mutex_);
  std::int64_t first_ns = events_.empty() ? 0 : events_.front().begin_ns;
  for (const Event& event : events_) first_ns = std::min(first_ns, event.begin_ns);
  std::string json = "{\"displayTimeUnit\": \"ns\", \"traceEvents\": [";
  const auto out = std::back_inserter(json);
  const char* separator = "\n";
  for (const Event& event : events_) {
    const ProfileTotal& total = totals_[event.total];
    fmt::format_to(
        out,
        "{}{{\"name\": {}, \"cat\": \"op\", \"ph\": \"X\", \"ts\": {:.3f}, \"dur\": {:.3f}, \"pid\": {}, \"tid\": {}, "
        "\"args\": {{\"plan\": {}, \"bytes\": {}, \"flops\": {}}}}}",
        separator, json_string(total.op), double(event.begin_ns - first_ns) * 1e-3, double(event.duration_ns) * 1e-3,
        getpid(), event.thread, json_string(total.plan), event.bytes, event.flops);
    separator = ",\n";
  }
  fmt::format_to(out, "\n], \"otherData\": {{\"dropped_events\": {}}}}}\n", num_events_ - std::int64_t(events_.size()));
  return json;
}

void Profiler::write_trace(const std::string& path) const {
  const std::string json = trace_json();
  std::ofstream file(path, std::ios::binary);
  file.write(json.data(), std::streamsize(json.size()));
  file.close();
  if (!file) throw SystemFailure(fmt::format("can't write the trace to '{}'", path));
}

std::int64_t Profiler::num_dropped_events() const {
  std::lock_guard lock(mutex_);
  return num_events_ - std::int64_t(events_.size());
}

void Profiler::clear() {
  std::lock_guard lock(mutex_);
  index_.clear();
  totals_.clear();
  events_.clear();
  num_events_ = 0;
}

void Zone::begin(const char* op, Work work) noexcept {
  op_ = op;
  work_ = work;
  outer_ = current_zone;
  current_zone = this;
  begin_ns_ = now_ns();
}

void Zone::end() noexcept {
  const std::int64_t end_ns = now_ns();
  current_zone = outer_;
  if (outer_) outer_->inner_ns_ += end_ns - begin_ns_;
  profiler_->record(op_, plan_, work_, begin_ns_, end_ns, inner_ns_);
}

}  // namespace ops_transformer
