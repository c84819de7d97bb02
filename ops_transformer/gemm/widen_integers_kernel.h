// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops_transformer/gemm/linear_kernel.h"

namespace ops_transformer {

struct WidenIntegersArgs {
  const void* x;        // s8 or u8
  const float* scales;  // nullptr: 1
  std::int64_t num_inputs, x_stride, scale_stride;
  std::int32_t zero;
  DType x_dtype;
};

/// The prologue that dequantises: scale * (code - zero) of a row of WidenIntegersArgs.
using WidenIntegersFn = void(const void* args, std::int64_t row, float* out) noexcept;
OPS_TRANSFORMER_KERNEL(widen_integers, WidenIntegersFn, generic, avx2, avx512)

}  // namespace ops_transformer
