// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace ops_transformer {

/// The scratch of flash_tiles, one definition for plan and kernel. Counts of 32-bit units; every part starts at a cache
/// line.
struct FlashTilesLayout {
  std::int64_t q_units;   // of a packed query or key row: head_dim, or pairs of bf16
  std::int64_t k_stride;  // between packed key rows
  std::int64_t v_stride;  // between packed value rows (or pairs of rows)
  std::int64_t lanes;     // queries in a block
  std::int64_t key_tile, value_dim;

  static FlashTilesLayout make(int head_dim, int value_dim, int key_tile, std::int64_t lanes, bool bf16_pairs) {
    const auto up = [](std::int64_t n) { return (n + 31) / 32 * 32; };
    const std::int64_t units = bf16_pairs ? (head_dim + 1) / 2 : head_dim;
    return {units, up(units), up(value_dim), lanes, key_tile, value_dim};
  }

  // The shared part: packed keys, packed values, scores, rescale factors.
  std::int64_t k_units() const { return key_tile * k_stride; }
  std::int64_t v_units() const { return key_tile * v_stride; }
  std::int64_t score_units() const { return key_tile * lanes; }
  std::int64_t shared_units() const { return k_units() + v_units() + score_units() + lanes; }

  // Each block: packed queries, O^T, maximum, sum, first and last visible key of each lane.
  std::int64_t q_block_units() const { return k_stride * lanes; }
  std::int64_t o_block_units() const { return value_dim * lanes; }
  std::int64_t block_units() const { return q_block_units() + o_block_units() + 4 * lanes; }

  std::size_t bytes(std::int64_t num_blocks) const {
    return std::size_t(shared_units() + num_blocks * block_units()) * 4;
  }
};

}  // namespace ops_transformer
