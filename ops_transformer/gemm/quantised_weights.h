// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops_transformer/base/dtype.h"

namespace ops_transformer {

// Quantised weights as the kernels read them: a tile of 16 outputs is its blocks of 32 inputs one after the other, each
// as large as the 16 blocks of the file that it holds:
//   q4_0, q4_1  256 B of nibbles: 32-bit word [4 groups z of inputs][output], low nibbles 4z…, high nibbles 16 + 4z…
//   q8_0        512 B of code + 128: 32-bit word [8 groups of inputs][output]
//   then 16 f16 scales, and for q4_1 16 f16 minima.
inline constexpr int kQuantBlockLen = 32;

constexpr std::size_t packed_codes_bytes(DType dtype) noexcept { return dtype == DType::q8_0 ? 512 : 256; }
constexpr std::size_t packed_block_bytes(DType dtype) noexcept {
  return packed_codes_bytes(dtype) + (dtype == DType::q4_1 ? 64 : 32);
}

struct WeightFormat;
extern const WeightFormat kQ4_0Weights, kQ4_1Weights, kQ8_0Weights;

}  // namespace ops_transformer
