// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops_transformer/base/memory.h"
#include "ops_transformer/gemm/linear_kernel.h"
#include "ops_transformer/gemm/quantised_weights.h"

namespace ops_transformer {

/// 32 activations as int8: x = scale * code with scale = max|x| / 127, codes rounded half to even and within +-127.
/// Zeros have scale 0; a NaN or an infinity gives codes 0 and scale NaN, so that all that is computed from it is NaN.
struct QuantisedBlock {
  std::int8_t codes[kQuantBlockLen];
  float scale;
  float scaled_sum;        // scale * sum of the codes: what a weight's minimum is multiplied by
  std::int32_t sum;        // of the codes
  std::int32_t first_sum;  // of the first 16
};

constexpr std::size_t quantised_row_bytes(std::int64_t num_inputs) noexcept {
  return align_up(std::size_t((num_inputs + kQuantBlockLen - 1) / kQuantBlockLen) * sizeof(QuantisedBlock));
}

/// Each row becomes its QuantisedBlocks, the last one filled with zeros; the same bits at every level.
OPS_TRANSFORMER_KERNEL(quantise_rows, PrepareFn, generic, avx2, avx2_vnni, avx512, avx512_vnni)

}  // namespace ops_transformer
