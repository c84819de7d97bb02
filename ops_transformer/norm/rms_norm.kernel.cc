// SPDX-License-Identifier: Apache-2.0
// levels: generic avx2 avx512 avx512_bf16
#include "ops_transformer/norm/rms_norm_kernel.h"

#include "ops_transformer/simd/begin.h"

namespace ops_transformer::OPS_TRANSFORMER_ISA {
namespace {

#include "ops_transformer/norm/rms_norm.inl.h"

// Reads row r, plus the residual, as floats; writes the sum where it is wanted; returns the sum of its squares.
template <class T>
float gather_row(const RmsNormArgs& args, std::int64_t r, float* row) noexcept {
  const std::int64_t n = args.hidden;
  const T* x = static_cast<const T*>(args.x) + r * args.x_stride;
  const T* residual = args.residual ? static_cast<const T*>(args.residual) + r * args.residual_stride : nullptr;
  T* residual_out = args.residual_out ? static_cast<T*>(args.residual_out) + r * args.residual_out_stride : nullptr;
  SquareSum squares;
  std::int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    for (int j = 0; j < 4; ++j) {
      const std::int64_t k = i + j * kLanes;
      F32 h = load(x + k);
      if (residual) h += load(residual + k);
      if (residual_out) store(residual_out + k, h);
      store(row + k, h);
      squares.add(j, h);
    }
  }
  for (; i < n; i += kLanes) {
    const int lanes = int(n - i < kLanes ? n - i : kLanes);
    F32 h = load_first(x + i, lanes);
    if (residual) h += load_first(residual + i, lanes);
    if (residual_out) store_first(residual_out + i, h, lanes);
    store_first(row + i, h, lanes);
    squares.add(0, h);
  }
  return squares.total();
}

template <class Weight, class Out>
void scale_row(const RmsNormArgs& args, std::int64_t r, const float* row, float inverse_rms) noexcept {
  const std::int64_t n = args.hidden;
  const auto* weight = static_cast<const Weight*>(args.weight);
  Out* out = static_cast<Out*>(args.out) + r * args.out_stride;
  const Out* added = args.added ? static_cast<const Out*>(args.added) + r * args.added_stride : nullptr;
  const F32 factor = splat(inverse_rms), offset = splat(args.weight_offset);
  std::int64_t i = 0;
  if (args.stream) {
    for (; i + kLanes <= n; i += kLanes) stream(out + i, load(row + i) * factor * (load(weight + i) + offset));
  }
  for (; i + kLanes <= n; i += kLanes) {
    F32 y = load(row + i) * factor * (load(weight + i) + offset);
    if (added) y += load(added + i);
    store(out + i, y);
  }
  if (const int lanes = int(n - i); lanes > 0) {
    F32 y = load_first(row + i, lanes) * factor * (load_first(weight + i, lanes) + offset);
    if (added) y += load_first(added + i, lanes);
    store_first(out + i, y, lanes);
  }
}

using GatherFn = float(const RmsNormArgs&, std::int64_t, float*) noexcept;
using ScaleFn = void(const RmsNormArgs&, std::int64_t, const float*, float) noexcept;

template <class Weight>
ScaleFn* scale_of(DType out) noexcept {
  return out == DType::f32 ? scale_row<Weight, float>
                           : (out == DType::bf16 ? scale_row<Weight, BFloat16> : scale_row<Weight, Float16>);
}

}  // namespace

void rms_norm_rows(const RmsNormArgs& args, std::int64_t first, std::int64_t last, float* row) noexcept {
  GatherFn* const gather = args.x_dtype == DType::f32
                               ? gather_row<float>
                               : (args.x_dtype == DType::bf16 ? gather_row<BFloat16> : gather_row<Float16>);
  ScaleFn* const scale =
      args.weight_dtype == DType::f32
          ? scale_of<float>(args.out_dtype)
          : (args.weight_dtype == DType::bf16 ? scale_of<BFloat16>(args.out_dtype) : scale_of<Float16>(args.out_dtype));
  for (std::int64_t r = first; r < last; ++r) {
    const float squares = gather(args, r, row);
    scale(args, r, row, inverse_rms(row, args.hidden, squares, args.eps));
  }
  if (args.stream) stream_fence();
}

}  // namespace ops_transformer::OPS_TRANSFORMER_ISA
#include "ops_transformer/simd/end.h"
