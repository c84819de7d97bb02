// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "ops_transformer/base/dtype.h"

namespace ops_transformer::reference {

/// The values of a GGUF row of q4_0, q4_1 or q8_0 in float64, by the file format's definition.
std::vector<double> dequantise_row(DType dtype, const void* row, std::int64_t num_elements);

/// One row of activations by int8 in blocks of 32: codes, and their scale for every block.
struct QuantisedRow {
  std::vector<int> codes;
  std::vector<float> scales;
};
QuantisedRow quantise_row(const std::vector<float>& x);

/// What the codes stand for, element by element.
std::vector<double> values(const QuantisedRow& row);

}  // namespace ops_transformer::reference
