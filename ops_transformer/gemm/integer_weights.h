// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops_transformer/gemm/weight_format.h"

namespace ops_transformer {

/// Integer weights, packed: a tile of 16 outputs is its groups of inputs one after the other, then for a single group
/// the sums of its outputs' codes [16] i32. A group is
///   codes, unsigned (s8 + 128, s4 + 8, u8 as they are): [ceil(inputs / 4)][16][4] bytes; of four bits
///     [ceil(inputs / 8)][16][4], the low half inputs 8 i + j, the high half inputs 8 i + 4 + j
///   scales [16], in the dtype they came in
///   zeros [16], unsigned as the codes, where there are any
struct IntegerLayout {
  int code_bits;
  std::int64_t group_len, num_groups;
  std::int64_t codes_bytes, group_bytes;  // of a group
  std::int64_t tile_bytes;
};
IntegerLayout integer_layout(DType dtype, std::int64_t num_inputs, const WeightScaling& scaling) noexcept;

/// The code of 0 where there are no zeros.
constexpr std::int32_t code_of_zero(DType dtype) noexcept {
  return dtype == DType::s8 ? 128 : dtype == DType::s4 ? 8 : 0;
}
constexpr bool is_integer_weight(DType dtype) noexcept {
  return dtype == DType::s8 || dtype == DType::u8 || dtype == DType::s4;
}

/// With one scale for all inputs, sums of more than these might not fit 32 bits; fewer where x has a zero of its own.
inline constexpr std::int64_t kMostInputsOfGroup = 65536, kMostInputsWithZero = 32768;

/// Bytes of codes in a prepared row; its IntegerGroups come behind them.
constexpr std::int64_t integer_codes_bytes(std::int64_t num_inputs) noexcept {
  return std::int64_t(align_up(std::size_t(num_inputs)));
}

/// Writes the codes and the code sums of a tile, and scales of 1. Elements of a row are `stride` apart (s4: 1).
void pack_integer_tile(DType dtype, const void* const* rows, std::int64_t stride, std::int64_t num_inputs,
                       const WeightScaling& scaling, std::byte* tile) noexcept;

extern const WeightFormat kS8Weights, kU8Weights, kS4Weights;

}  // namespace ops_transformer
