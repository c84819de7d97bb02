// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops_transformer/gemm/linear_kernel.h"

namespace ops_transformer {

/// What the kernels know of integer weights (IntegerLayout) and of x.
struct IntegerArgs {
  std::int64_t group_len, num_groups, codes_bytes, group_bytes;
  std::int64_t groups_at;  // of a prepared row
  std::int32_t code_zero;  // the code of 0 where there are no zeros
  std::int32_t x_zero;     // of x as s8; not 0 with a single group only
  DType scales;
  bool has_zeros;
  bool raw;  // the epilogue gets integers
};

/// A prepared row is its codes s8, zeros up to groups_at, then one of these for each group.
struct IntegerGroup {
  float scale;       // x = scale * (code - x_zero)
  std::int32_t sum;  // of the codes
};

/// Floats become codes within +-127 by the group's own scale max|x| / 127, or by x_scales within -128...127; rounded
/// half to even. A NaN or an infinity gives codes 0 and scale NaN, zeros scale 0. s8 are taken as they are, u8 less
/// 128. The same bits at every level.
OPS_TRANSFORMER_KERNEL(quantise_groups, PrepareFn, generic, avx2, avx512)

/// Those rows by packed integer weights. Sums of a group are integers, the same at every level; then, in the order of
/// the groups, sum = fma(x scale * weight scale, integer sum, sum).
OPS_TRANSFORMER_KERNEL(multiply_bytes, MultiplyFn, generic, avx2, avx2_vnni, avx512, avx512_vnni)
OPS_TRANSFORMER_KERNEL(multiply_nibbles, MultiplyFn, generic, avx2, avx2_vnni, avx512, avx512_vnni)
/// f32 rows by scale * (code - zero): f32 products, one chain in the order of the inputs.
OPS_TRANSFORMER_KERNEL(multiply_exact_bytes, MultiplyFn, generic, avx2, avx512)
OPS_TRANSFORMER_KERNEL(multiply_exact_nibbles, MultiplyFn, generic, avx2, avx512)

}  // namespace ops_transformer
