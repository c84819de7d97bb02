// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/base/tensor_view.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>

#include "ops_transformer/base/error.h"

namespace ops_transformer {

int checked_rank(std::size_t num_sizes, std::size_t num_strides) {
  if (num_sizes > std::size_t(kMaxRank)) {
    throw InvalidArgument(fmt::format("a tensor has {} dimensions, must have at most {}", num_sizes, kMaxRank));
  }
  if (num_strides != num_sizes) {
    throw InvalidArgument(
        fmt::format("a tensor has {} strides, must have one for each of {} dimensions", num_strides, num_sizes));
  }
  return int(num_sizes);
}

std::string describe(const ConstTensorView& view) {
  return fmt::format("[{}] {}", fmt::join(view.shape(), ", "), dtype_name(view.dtype()));
}

ByteRange byte_range(const ConstTensorView& view) {
  std::int64_t lowest = 0, highest = 0, reach = 0;
  bool lost = false;
  for (int i = 0; i < view.rank(); ++i) {
    if (view.size(i) == 0) return {nullptr, nullptr};
    lost |= __builtin_mul_overflow(view.size(i) - 1, view.stride(i), &reach);
    std::int64_t& end = reach < 0 ? lowest : highest;
    lost |= __builtin_add_overflow(end, reach, &end);
  }
  const DTypeInfo& info = dtype_info(view.dtype());
  const auto block_len = std::int64_t(info.block_len), block_bytes = std::int64_t(info.block_bytes);
  const auto base = reinterpret_cast<std::uintptr_t>(view.data());
  std::uintptr_t first = 0, last = 0;
  lost |= __builtin_mul_overflow(lowest / block_len, block_bytes, &lowest);
  lost |= __builtin_mul_overflow(highest / block_len + 1, block_bytes, &highest);
  lost |= __builtin_add_overflow(base, lowest, &first) || __builtin_add_overflow(base, highest, &last);
  if (lost) return {nullptr, reinterpret_cast<const std::byte*>(UINTPTR_MAX)};
  return {reinterpret_cast<const std::byte*>(first), reinterpret_cast<const std::byte*>(last)};
}

bool overlaps(const ConstTensorView& a, const ConstTensorView& b) {
  const ByteRange x = byte_range(a), y = byte_range(b);
  return x.begin != x.end && y.begin != y.end && x.begin < y.end && y.begin < x.end;
}

bool same_place(const ConstTensorView& a, const ConstTensorView& b) {
  if (a.data() != b.data() || a.dtype() != b.dtype() || !std::ranges::equal(a.shape(), b.shape())) return false;
  for (int i = 0; i < a.rank(); ++i) {
    if (a.size(i) > 1 && a.stride(i) != b.stride(i)) return false;
  }
  return true;
}

}  // namespace ops_transformer
