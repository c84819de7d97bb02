// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/base/memory.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <new>
#include <utility>

namespace ops_transformer {
namespace {

bool aligned(const void* p, std::size_t alignment) { return reinterpret_cast<std::uintptr_t>(p) % alignment == 0; }

TEST(Buffer, IsAlignedAndWritable) {
  for (std::size_t bytes : {std::size_t{1}, std::size_t{63}, std::size_t{4097}, (std::size_t{1} << 20) - 1,
                            std::size_t{1} << 20, (std::size_t{5} << 20) + 3}) {
    Buffer buffer(bytes);
    ASSERT_EQ(buffer.size(), bytes);
    EXPECT_TRUE(aligned(buffer.data(), bytes >= std::size_t{1} << 20 ? kHugePageBytes : kAlignment)) << bytes;
    std::memset(buffer.data(), 0x5a, bytes);
    EXPECT_EQ(buffer.data()[bytes - 1], std::byte{0x5a});
  }
}

TEST(Buffer, EmptyAndMovedFromAreHarmless) {
  const Buffer empty, zero(0);
  EXPECT_EQ(empty.data(), nullptr);
  EXPECT_EQ(zero.size(), 0u);
  Buffer large(std::size_t{3} << 20), small(100);
  std::byte* const data = large.data();
  Buffer moved(std::move(large));
  EXPECT_EQ(moved.data(), data);
  EXPECT_EQ(large.data(), nullptr);
  small = std::move(moved);
  EXPECT_EQ(small.data(), data);
  EXPECT_EQ(small.size(), std::size_t{3} << 20);
}

TEST(Buffer, TooMuchIsBadAlloc) {
  EXPECT_THROW(Buffer{std::numeric_limits<std::size_t>::max()}, std::bad_alloc);
  EXPECT_THROW(Buffer{std::numeric_limits<std::size_t>::max() / 2}, std::bad_alloc);
  EXPECT_THROW(Buffer{std::size_t{1} << 62}, std::bad_alloc);
}

TEST(Arena, BlocksDontOverlapAndAreAligned) {
  Arena arena;
  std::byte* end = nullptr;
  for (std::size_t bytes : {std::size_t{1}, std::size_t{100}, std::size_t{64}, std::size_t{5000}}) {
    std::byte* memory = arena.allocate_bytes(bytes);
    EXPECT_TRUE(aligned(memory, kAlignment));
    EXPECT_GE(memory, end);
    std::memset(memory, 1, bytes);
    end = memory + bytes;
  }
  EXPECT_EQ(arena.allocate<double>(10).size(), 10u);
}

TEST(Arena, SecondRoundFitsInOneBlock) {
  Arena arena;
  const auto use = [&arena] {
    std::byte* first = arena.allocate_bytes(300 << 10);
    std::byte* last = first;
    for (int i = 0; i < 10; ++i) {
      last = arena.allocate_bytes((std::size_t{200} << 10) + 1);
      std::memset(last, 1, (std::size_t{200} << 10) + 1);
    }
    return std::pair(first, last);
  };
  use();
  const std::size_t used = arena.high_water_bytes();
  EXPECT_EQ(used, (std::size_t{300} << 10) + 10 * ((std::size_t{200} << 10) + 64));
  arena.reset();
  const auto second = use();
  EXPECT_EQ(std::size_t(second.second - second.first) + (std::size_t{200} << 10) + 64, used);
  arena.reset();
  EXPECT_EQ(use(), second);
  EXPECT_EQ(arena.high_water_bytes(), used);
}

TEST(Arena, CountsThatOverflowAreBadAlloc) {
  Arena arena;
  EXPECT_THROW(arena.allocate<double>(std::numeric_limits<std::size_t>::max() / 4), std::bad_alloc);
  EXPECT_THROW(arena.allocate_bytes(std::numeric_limits<std::size_t>::max()), std::bad_alloc);
  EXPECT_NE(arena.allocate_bytes(1), nullptr);
}

TEST(AlignUp, Rounds) {
  static_assert(align_up(0) == 0 && align_up(1) == 64 && align_up(64) == 64 && align_up(65, 16) == 80);
}

}  // namespace
}  // namespace ops_transformer
