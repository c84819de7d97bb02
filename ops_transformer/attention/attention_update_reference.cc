// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/attention/attention_update_reference.h"

#include <cmath>
#include <limits>

namespace ops_transformer::reference {

MergedRow merge_row(const std::vector<std::vector<double>>& outs, const std::vector<double>& lses) {
  constexpr double kEmpty = -std::numeric_limits<double>::infinity();
  const std::size_t dim = outs[0].size();
  MergedRow row{std::vector<double>(dim), std::vector<double>(dim), kEmpty};
  // log(e^a + e^b), part by part.
  for (double lse : lses) {
    if (lse == kEmpty) continue;
    row.lse = row.lse == kEmpty ? lse : std::fmax(row.lse, lse) + std::log1p(std::exp(-std::abs(row.lse - lse)));
  }
  for (std::size_t p = 0; p < lses.size(); ++p) {
    if (lses[p] == kEmpty) continue;
    const double weight = std::exp(lses[p] - row.lse);
    for (std::size_t d = 0; d < dim; ++d) {
      row.out[d] += weight * outs[p][d];
      row.magnitude[d] += weight * std::abs(outs[p][d]);
    }
  }
  return row;
}

}  // namespace ops_transformer::reference
