// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops_transformer/base/dtype.h"
#include "ops_transformer/base/isa.h"

namespace ops_transformer {

struct NormArgs {
  const void* x;
  const void* weight;
  const void* bias;      // nullptr: none; dtype of weight
  const void* residual;  // nullptr: none
  void* residual_out;    // nullptr: none
  const void* added;     // nullptr: none; dtype of out
  void* out;
  float* scales;  // [rows], where out is s8
  std::int64_t hidden;
  std::int64_t x_stride, residual_stride, residual_out_stride, added_stride, out_stride;  // elements between rows
  std::int64_t scales_stride;
  DType x_dtype, weight_dtype, out_dtype;
  float eps, weight_offset;
  bool stream;  // store past the caches; every row of out is aligned to 64 bytes
};

/// Normalises rows [first, last). `row` is scratch for `hidden` floats.
using NormFn = void(const NormArgs& args, std::int64_t first, std::int64_t last, float* row) noexcept;
OPS_TRANSFORMER_KERNEL(rms_norm_rows, NormFn, generic, avx2, avx512, avx512_bf16)
OPS_TRANSFORMER_KERNEL(layer_norm_rows, NormFn, generic, avx2, avx512, avx512_bf16)

}  // namespace ops_transformer
