// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace ops_transformer::reference {

/// Angle of a pair at a position, in radians.
long double rope_angle(std::int64_t position, std::int64_t pair, std::int64_t rotary_dim, double theta,
                       double position_scale);

/// One head's row, rotated as complex numbers.
std::vector<double> rotary_embedding(const std::vector<double>& x, std::int64_t position, std::int64_t rotary_dim,
                                     double theta, double position_scale, bool interleaved);

}  // namespace ops_transformer::reference
