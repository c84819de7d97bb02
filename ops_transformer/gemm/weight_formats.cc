// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>

#include "ops_transformer/gemm/float_weights.h"
#include "ops_transformer/gemm/integer_weights.h"
#include "ops_transformer/gemm/quantised_weights.h"
#include "ops_transformer/gemm/weight_format.h"

namespace ops_transformer {
namespace {

constexpr std::array<const WeightFormat*, 16> kFormats = {&kF32Weights,  &kBf16Weights, &kF16Weights,  &kQ4_0Weights,
                                                          &kQ4_1Weights, &kQ5_0Weights, &kQ5_1Weights, &kQ8_0Weights,
                                                          &kQ2_KWeights, &kQ3_KWeights, &kQ4_KWeights, &kQ5_KWeights,
                                                          &kQ6_KWeights, &kS8Weights,   &kU8Weights,   &kS4Weights};

}  // namespace

std::span<const WeightFormat* const> weight_formats() noexcept { return kFormats; }

const WeightFormat* find_weight_format(DType dtype) noexcept {
  const auto* found = std::ranges::find(kFormats, dtype, &WeightFormat::dtype);
  return found == kFormats.end() ? nullptr : *found;
}

}  // namespace ops_transformer
