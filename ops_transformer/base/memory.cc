// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/base/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <utility>

namespace ops_transformer {
namespace {

constexpr std::size_t kMapFrom = std::size_t{1} << 20;
constexpr std::size_t kLeastBlockBytes = std::size_t{256} << 10;

std::byte* map_aligned(std::size_t bytes) {
  // Map with slack, then give back what lies outside the aligned part.
  const std::size_t size = align_up(bytes, 4096), with_slack = size + kHugePageBytes;
  void* mapped = mmap(nullptr, with_slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  auto* begin = static_cast<std::byte*>(mapped);
  const auto address = reinterpret_cast<std::uintptr_t>(begin);
  std::byte* aligned = begin + (align_up(address, kHugePageBytes) - address);
  if (aligned != begin) munmap(begin, std::size_t(aligned - begin));
  if (std::byte* end = aligned + size; end != begin + with_slack) munmap(end, std::size_t(begin + with_slack - end));
  madvise(aligned, size, MADV_HUGEPAGE);
  return aligned;
}

}  // namespace

Buffer::Buffer(std::size_t bytes) : size_(bytes) {
  if (bytes > PTRDIFF_MAX - kHugePageBytes) throw std::bad_alloc();
  if (bytes >= kMapFrom) {
    data_ = map_aligned(bytes);
  } else if (bytes) {
    data_ = static_cast<std::byte*>(std::aligned_alloc(kAlignment, align_up(bytes)));
    if (!data_) throw std::bad_alloc();
  }
}

Buffer::Buffer(Buffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

Buffer::~Buffer() {
  if (size_ >= kMapFrom) {
    munmap(data_, align_up(size_, 4096));
  } else {
    std::free(data_);
  }
}

std::byte* Arena::allocate_bytes(std::size_t bytes) {
  if (bytes > kMaxBytes) throw std::bad_alloc();
  bytes = align_up(bytes);
  if (blocks_.empty() || bytes > blocks_.back().size() - used_in_last_) {
    // high_water_ counts only where an earlier call's blocks were dropped.
    blocks_.emplace_back(align_up(std::max(bytes, blocks_.empty() ? high_water_ : 0), kLeastBlockBytes));
    used_in_last_ = 0;
  }
  std::byte* memory = blocks_.back().data() + used_in_last_;
  used_in_last_ += bytes;
  used_ += bytes;
  high_water_ = std::max(high_water_, used_);
  return memory;
}

void Arena::reset() noexcept {
  if (blocks_.size() > 1) blocks_.clear();
  used_in_last_ = used_ = 0;
}

}  // namespace ops_transformer
