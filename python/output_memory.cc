// SPDX-License-Identifier: Apache-2.0
#include "python/output_memory.h"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>

#include "ops_transformer/base/memory.h"

namespace ops_transformer::python {
namespace {

constexpr std::size_t kRecycledFrom = std::size_t{1} << 20;

// Guarded by the GIL. Never destroyed: arrays may outlive the module.
struct Idle {
  std::deque<Buffer> buffers;  // oldest first
  std::size_t bytes = 0;
};
Idle& idle() {
  static Idle* const instance = new Idle;
  return *instance;
}

void give_back(void* pointer) noexcept {
  std::unique_ptr<Buffer> buffer(static_cast<Buffer*>(pointer));
  if (buffer->size() < kRecycledFrom || buffer->size() > kMaxIdleOutputBytes) return;
  Idle& kept = idle();
  while (kept.bytes + buffer->size() > kMaxIdleOutputBytes) {
    kept.bytes -= kept.buffers.front().size();
    kept.buffers.pop_front();
  }
  kept.bytes += buffer->size();
  kept.buffers.push_back(std::move(*buffer));
}

}  // namespace

std::size_t idle_output_bytes() { return idle().bytes; }

OutputMemory take_output_memory(std::size_t bytes) {
  auto buffer = std::make_unique<Buffer>();
  if (bytes >= kRecycledFrom) {
    // The last one given back is the likeliest to be in cache; one far too big would waste memory.
    auto& kept = idle().buffers;
    const auto found = std::find_if(kept.rbegin(), kept.rend(), [bytes](const Buffer& candidate) {
      return candidate.size() >= bytes && candidate.size() <= bytes + bytes / 4;
    });
    if (found != kept.rend()) {
      *buffer = std::move(*found);
      idle().bytes -= buffer->size();
      kept.erase(std::next(found).base());
    }
  }
  if (!buffer->data()) *buffer = Buffer(std::max<std::size_t>(bytes, 1));
  void* data = buffer->data();
  return {data, nanobind::capsule(buffer.release(), give_back)};
}

}  // namespace ops_transformer::python
