// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace ops_transformer {

/// The scratch of flash_decode, one definition for plan and kernel: packed queries of all rows, then their results.
struct FlashDecodeLayout {
  std::int64_t q_row_floats, o_row_floats;

  static FlashDecodeLayout make(int head_dim, int value_dim) {
    const auto up = [](std::int64_t n) { return (n + 31) / 32 * 32; };
    return {up(head_dim), up(value_dim)};
  }

  std::size_t bytes(std::int64_t num_rows) const { return std::size_t(num_rows * (q_row_floats + o_row_floats)) * 4; }
};

}  // namespace ops_transformer
