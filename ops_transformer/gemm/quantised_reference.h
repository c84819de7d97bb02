// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "ops_transformer/base/dtype.h"

namespace ops_transformer::reference {

inline constexpr DType kQuantisedTypes[] = {DType::q4_0, DType::q4_1, DType::q5_0, DType::q5_1, DType::q8_0,
                                            DType::q2_k, DType::q3_k, DType::q4_k, DType::q5_k, DType::q6_k};

/// The values of a GGUF row of a block-quantised type in float64, by the file format's definition.
std::vector<double> dequantise_row(DType dtype, const void* row, std::int64_t num_elements);

/// Where a block of the file has its f16 scale and minimum (-1: none).
struct HalvesOfBlock {
  int scale, minimum;
};
HalvesOfBlock halves_of_block(DType dtype);
/// Makes every sub-scale and sub-minimum of a block 1, where the type has them.
void set_sub_scales_to_one(DType dtype, void* block);

/// One row of activations by int8 in blocks of 32: codes, and their scale for every block.
struct QuantisedRow {
  std::vector<int> codes;
  std::vector<float> scales;
};
QuantisedRow quantise_row(const std::vector<float>& x);

/// What the codes stand for, element by element.
std::vector<double> values(const QuantisedRow& row);

}  // namespace ops_transformer::reference
