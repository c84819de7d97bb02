// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>

#include "ops_transformer/base/dtype.h"

namespace ops_transformer::test {

/// Unit roundoff of a float type.
inline double epsilon(DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return 0x1p-8;
    case DType::f16:
      return 0x1p-11;
    default:
      return 0x1p-24;
  }
}

/// The one bound for every operator: a sum of `terms` products accumulated in `accumulate` and rounded once to `out`.
/// magnitude is the sum of |a||b| over the terms, expected the float64 result.
inline double tolerance(double terms, double magnitude, double expected, DType out, DType accumulate = DType::f32) {
  const double smallest = out == DType::f16 ? 0x1p-25 : 0x1p-140;
  return 2 * (terms + 8) * epsilon(accumulate) * magnitude + epsilon(out) * std::abs(expected) + smallest;
}

}  // namespace ops_transformer::test
