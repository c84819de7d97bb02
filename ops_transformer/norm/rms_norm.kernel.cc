// SPDX-License-Identifier: Apache-2.0
// levels: generic avx2 avx512 avx512_bf16
#include "ops_transformer/norm/rms_norm_kernel.h"

#include "ops_transformer/simd/begin.h"

namespace ops_transformer::OPS_TRANSFORMER_ISA {
namespace {

#include "ops_transformer/simd/convert.inl.h"

// Four accumulators, since one would wait for the latency of its own addition.
float sum_of_squares(const float* h, std::int64_t n, float scale) noexcept {
  F32 total[4] = {};
  const F32 factor = splat(scale);
  std::int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    for (int j = 0; j < 4; ++j) {
      const F32 v = load(h + i + j * kLanes) * factor;
      total[j] = fma(v, v, total[j]);
    }
  }
  for (; i < n; i += kLanes) {
    const F32 v = load_first(h + i, int(n - i < kLanes ? n - i : kLanes)) * factor;
    total[0] = fma(v, v, total[0]);
  }
  return sum((total[0] + total[1]) + (total[2] + total[3]));
}

float largest(const float* h, std::int64_t n) noexcept {
  F32 most{};
  for (std::int64_t i = 0; i < n; i += kLanes)
    most = max(abs(load_first(h + i, int(n - i < kLanes ? n - i : kLanes))), most);
  return max_lane(most);
}

// 1 / sqrt(mean(h^2) + eps). Squares of finite values can overflow: then the row is first scaled by a power of two.
float inverse_rms(const float* h, std::int64_t n, float eps) noexcept {
  const float squares = sum_of_squares(h, n, 1.0f);
  if (squares <= 3.0e38f) return 1.0f / __builtin_sqrtf(squares / float(n) + eps);
  const float most = largest(h, n);
  if (!(most <= 3.4028235e38f)) return squares - squares;  // NaN or infinity in the row
  return 0x1p-96f / __builtin_sqrtf(sum_of_squares(h, n, 0x1p-96f) / float(n));
}

}  // namespace

void rms_norm_rows(const RmsNormArgs& args, std::int64_t first, std::int64_t last, float* row) noexcept {
  const std::int64_t n = args.hidden;
  for (std::int64_t r = first; r < last; ++r) {
    read_row(args.x, args.x_dtype, r * args.x_stride, n, row);
    if (args.residual) add_row(args.residual, args.x_dtype, r * args.residual_stride, n, row);
    if (args.residual_out) write_row(args.residual_out, args.x_dtype, r * args.residual_out_stride, n, row);
    const F32 factor = splat(inverse_rms(row, n, args.eps)), offset = splat(args.weight_offset);
    for (std::int64_t i = 0; i < n; i += kLanes) {
      const int lanes = int(n - i < kLanes ? n - i : kLanes);
      const F32 weight = load_any(args.weight, args.weight_dtype, i, lanes) + offset;
      store_any(args.out, args.out_dtype, r * args.out_stride + i, load_first(row + i, lanes) * factor * weight, lanes);
    }
  }
}

}  // namespace ops_transformer::OPS_TRANSFORMER_ISA
#include "ops_transformer/simd/end.h"
