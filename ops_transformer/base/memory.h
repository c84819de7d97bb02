// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <span>
#include <vector>

#include "ops_transformer/base/export.h"

namespace ops_transformer {

inline constexpr std::size_t kAlignment = 64;
inline constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;

inline constexpr std::size_t align_up(std::size_t bytes, std::size_t alignment = kAlignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

/// Owned memory, 64-byte aligned; from 1 MiB on it is mapped at a 2 MiB boundary and asks for huge pages, since a fresh
/// 4 KiB page costs 1.3 us here (3 GB/s). Contents are undefined; mapped pages are zero until written.
class OPS_TRANSFORMER_API Buffer {
 public:
  Buffer() = default;
  /// Throws std::bad_alloc.
  explicit Buffer(std::size_t bytes);
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  std::byte* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return size_; }
  template <class T>
  T* as() const noexcept {
    return reinterpret_cast<T*>(data_);
  }

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

/// Workspace of the calls of a Context: a bump allocator that keeps its memory, so that a steady state allocates
/// nothing. After a call that needed several blocks, the next one starts with a single block of their size.
class OPS_TRANSFORMER_API Arena {
 public:
  /// Uninitialised, 64-byte aligned, valid until reset. Throws std::bad_alloc.
  template <class T>
  std::span<T> allocate(std::size_t count) {
    if (count > kMaxBytes / sizeof(T)) throw std::bad_alloc();
    return {reinterpret_cast<T*>(allocate_bytes(count * sizeof(T))), count};
  }
  std::byte* allocate_bytes(std::size_t bytes);
  void reset() noexcept;

  /// The most bytes that one call has used.
  std::size_t high_water_bytes() const noexcept { return high_water_; }

 private:
  static constexpr std::size_t kMaxBytes = PTRDIFF_MAX - kHugePageBytes;

  std::vector<Buffer> blocks_;  // the last one is being filled
  std::size_t used_in_last_ = 0;
  std::size_t used_ = 0;
  std::size_t high_water_ = 0;
};

}  // namespace ops_transformer
