// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/base/context.h"

#include <fmt/format.h>

#include <algorithm>
#include <ranges>
#include <utility>

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

Context::~Context() {
  for (auto& idle : idle_arenas_) delete idle.load();
}

std::unique_ptr<Arena> Context::take_arena() {
  // The last one given back first: nested calls then keep their arenas, and only the outer one's grows to its size.
  for (auto& idle : std::views::reverse(idle_arenas_)) {
    if (idle.load(std::memory_order_relaxed)) {
      if (Arena* arena = idle.exchange(nullptr, std::memory_order_acquire)) return std::unique_ptr<Arena>(arena);
    }
  }
  return std::make_unique<Arena>();
}

void Context::give_back(std::unique_ptr<Arena> arena) noexcept {
  std::size_t most = high_water_bytes_.load(std::memory_order_relaxed);
  while (most < arena->high_water_bytes() &&
         !high_water_bytes_.compare_exchange_weak(most, arena->high_water_bytes(), std::memory_order_relaxed)) {
  }
  arena->reset();
  for (auto& idle : idle_arenas_) {
    Arena* none = nullptr;
    if (idle.compare_exchange_strong(none, arena.get(), std::memory_order_release, std::memory_order_relaxed)) {
      static_cast<void>(arena.release());
      return;
    }
  }
}

bool Context::try_hold_threads() noexcept {
  int holder = threads_held_.load(std::memory_order_relaxed);
  const int here = fork_generation();
  return holder != here && threads_held_.compare_exchange_strong(holder, here, std::memory_order_acquire);
}

Context& Context::process_default() {
  static Context context;
  return context;
}

CallScope::CallScope(Context& context) : context_(context), arena_(context.take_arena()), outer_(held) {
  const bool nested = held == &context;
  owns_threads_ = !nested && context.try_hold_threads();
  has_threads_ = nested || owns_threads_;
  if (owns_threads_) held = &context;
}

CallScope::~CallScope() {
  if (owns_threads_) {
    held = outer_;
    context_.threads_held_.store(Context::kFree, std::memory_order_release);
  }
  context_.give_back(std::move(arena_));
}

}  // namespace ops_transformer
