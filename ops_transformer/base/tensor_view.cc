// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/base/tensor_view.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ops_transformer/base/error.h"

namespace ops_transformer {

int checked_rank(std::size_t rank) {
  if (rank > std::size_t(kMaxRank)) {
    throw InvalidArgument(fmt::format("a tensor has {} dimensions, must have at most {}", rank, kMaxRank));
  }
  return int(rank);
}

std::string describe(const ConstTensorView& view) {
  return fmt::format("[{}] {}", fmt::join(view.shape(), ", "), dtype_name(view.dtype()));
}

ByteRange byte_range(const ConstTensorView& view) {
  std::int64_t lowest = 0, highest = 0;
  for (int i = 0; i < view.rank(); ++i) {
    if (view.size(i) == 0) return {nullptr, nullptr};
    const std::int64_t reach = (view.size(i) - 1) * view.stride(i);
    (reach < 0 ? lowest : highest) += reach;
  }
  const DTypeInfo& info = dtype_info(view.dtype());
  const auto block_len = std::int64_t(info.block_len), block_bytes = std::int64_t(info.block_bytes);
  const auto* base = static_cast<const std::byte*>(view.data());
  return {base + lowest / block_len * block_bytes, base + (highest / block_len + 1) * block_bytes};
}

bool overlaps(const ConstTensorView& a, const ConstTensorView& b) {
  const ByteRange x = byte_range(a), y = byte_range(b);
  return x.begin != x.end && y.begin != y.end && x.begin < y.end && y.begin < x.end;
}

}  // namespace ops_transformer
