// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstring>
#include <limits>
#include <new>
#include <type_traits>

#include "ops_transformer/base/float16.h"

namespace ops_transformer::test {

/// `count` elements that end directly before a page nobody may touch. Filled with bytes that read as NaN in every
/// float type, so that an output left unwritten, or an input read too far, shows.
template <class T>
class GuardedBuffer {
 public:
  explicit GuardedBuffer(std::size_t count) : count_(count) {
    const std::size_t bytes = count * sizeof(T), pages = (bytes + kPage - 1) / kPage * kPage;
    mapped_ = pages + 2 * kPage;
    map_ = mmap(nullptr, mapped_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map_ == MAP_FAILED) throw std::bad_alloc();
    std::byte* begin = static_cast<std::byte*>(map_) + kPage;
    if (pages) mprotect(begin, pages, PROT_READ | PROT_WRITE);
    if (pages) std::memset(begin, 0xff, pages);
    data_ = reinterpret_cast<T*>(begin + pages - bytes);
  }
  ~GuardedBuffer() { munmap(map_, mapped_); }
  GuardedBuffer(const GuardedBuffer&) = delete;
  GuardedBuffer& operator=(const GuardedBuffer&) = delete;

  T* data() { return data_; }
  const T* data() const { return data_; }
  std::size_t size() const { return count_; }
  T& operator[](std::size_t i) { return data_[i]; }
  const T& operator[](std::size_t i) const { return data_[i]; }
  T* begin() { return data_; }
  T* end() { return data_ + count_; }

 private:
  static constexpr std::size_t kPage = 4096;
  void* map_;
  std::size_t mapped_;
  T* data_;
  std::size_t count_;
};

}  // namespace ops_transformer::test
