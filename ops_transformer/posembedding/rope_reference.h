// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace ops_transformer::reference {

/// Angle of a pair at a position, in radians.
long double rope_angle(std::int64_t position, std::int64_t pair, std::int64_t rotary_dim, double theta,
                       double position_scale);

/// Frequencies by the published formulas of each scaling, in radians a position.
long double ntk_frequency(std::int64_t pair, std::int64_t rotary_dim, double theta, double factor);
long double llama3_frequency(std::int64_t pair, std::int64_t rotary_dim, double theta, double factor, double low,
                             double high, double original_context_len);
long double yarn_frequency(std::int64_t pair, std::int64_t rotary_dim, double theta, double factor,
                           double original_context_len, double beta_fast, double beta_slow);

/// One head's row, rotated as complex numbers.
std::vector<double> rotary_embedding(const std::vector<double>& x, std::int64_t position, std::int64_t rotary_dim,
                                     double theta, double position_scale, bool interleaved);

}  // namespace ops_transformer::reference
