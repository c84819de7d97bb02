// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/posembedding/alibi.h"

#include <bit>
#include <cmath>
#include <cstddef>

namespace ops_transformer {

void alibi_slopes(std::span<float> slopes) noexcept {
  const std::size_t power = std::bit_floor(slopes.size());
  for (std::size_t h = 1; h <= slopes.size(); ++h) {
    const double exponent = h <= power ? double(h) / double(power) : double(2 * (h - power) - 1) / double(2 * power);
    slopes[h - 1] = float(std::exp2(-8 * exponent));
  }
}

}  // namespace ops_transformer
