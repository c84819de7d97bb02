// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace ops_transformer::reference {

/// A row of floats as int8 in groups (0: one group) by their largest values, or by `given` where it is not 0: what the
/// codes stand for.
std::vector<double> rounded_to_int8(const std::vector<float>& x, std::int64_t group_len, float given);

/// sum over i of (a[i] - a_zero) * (b[j, i] - b_zero), for each of the rows j of b.
std::vector<std::int64_t> integer_products(const std::vector<int>& a, int a_zero, const std::vector<int>& b,
                                           int b_zero);

}  // namespace ops_transformer::reference
