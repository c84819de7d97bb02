// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "ops_transformer/base/dtype.h"
#include "ops_transformer/base/isa.h"

namespace ops_transformer {

enum class RotaryMode : std::uint8_t;

struct RotaryMulArgs {
  const void *x, *cos, *sin;
  const void* rotated;  // nullptr: by the mode
  void* out;
  std::int64_t size[3];  // of the leading dimensions
  std::int64_t x_stride[3], cos_stride[3], sin_stride[3], rotated_stride[3], out_stride[3];  // 0 where it broadcasts
  std::int64_t head_dim, rotary_dim;  // what lies between is copied
  DType dtype, angle_dtype;
  RotaryMode mode;
};

/// Rows [first, last) of the leading dimensions. `scratch` has room for 5 * (head_dim rounded up to 16) floats.
using RotaryMulFn = void(const RotaryMulArgs& args, std::int64_t first, std::int64_t last, float* scratch) noexcept;
OPS_TRANSFORMER_KERNEL(rotary_mul_rows, RotaryMulFn, generic, avx2, avx512, avx512_bf16)

}  // namespace ops_transformer
