// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/base/context.h"

#include <fmt/format.h>

#include <algorithm>

#include "ops_transformer/base/error.h"

namespace ops_transformer {
namespace {

// The context whose threads this thread holds, so that an operator that calls another doesn't lock itself out.
thread_local const Context* held = nullptr;

Isa choose_isa(std::optional<Isa> wanted) {
  const auto isas = supported_isas();
  if (!wanted) return isas.back();
  if (std::ranges::find(isas, *wanted) == isas.end()) {
    throw InvalidArgument(fmt::format("isa is {}, must be a level that runs here; the highest is {}", isa_name(*wanted),
                                      isa_name(isas.back())));
  }
  return *wanted;
}

}  // namespace

Context::Context(const ContextOptions& options)
    : pool_(options.num_threads ? *options.num_threads : default_num_threads()),
      isa_(choose_isa(options.isa)),
      deterministic_(options.deterministic) {}

Context::~Context() = default;

std::unique_ptr<Arena> Context::take_arena() {
  std::lock_guard lock(arenas_mutex_);
  if (idle_arenas_.empty()) return std::make_unique<Arena>();
  auto arena = std::move(idle_arenas_.back());
  idle_arenas_.pop_back();
  return arena;
}

std::size_t Context::workspace_high_water_bytes() const {
  std::lock_guard lock(arenas_mutex_);
  std::size_t most = 0;
  for (const auto& arena : idle_arenas_) most = std::max(most, arena->high_water_bytes());
  return most;
}

Context& Context::process_default() {
  static Context context;
  return context;
}

CallScope::CallScope(Context& context) : context_(context), arena_(context.take_arena()) {
  const bool nested = held == &context;
  owns_threads_ = !nested && context.threads_in_use_.try_lock();
  has_threads_ = nested || owns_threads_;
  if (owns_threads_) held = &context;
}

CallScope::~CallScope() {
  if (owns_threads_) {
    held = nullptr;
    context_.threads_in_use_.unlock();
  }
  arena_->reset();
  std::lock_guard lock(context_.arenas_mutex_);
  context_.idle_arenas_.push_back(std::move(arena_));
}

}  // namespace ops_transformer
