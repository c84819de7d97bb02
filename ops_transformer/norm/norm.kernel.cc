// SPDX-License-Identifier: Apache-2.0
// levels: generic avx2 avx512 avx512_bf16
#include "ops_transformer/norm/norm_kernel.h"

#include "ops_transformer/simd/begin.h"

namespace ops_transformer::OPS_TRANSFORMER_ISA {
namespace {

#include "ops_transformer/norm/rms_norm.inl.h"

#include "ops_transformer/norm/layer_norm.inl.h"

// What RMSNorm gathers of a row, and what LayerNorm does: add() for whole vectors, moments() when the row is complete.
struct RootMeanSquare {
  SquareSum squares;
  template <class T>
  OPS_TRANSFORMER_INLINE void start(const T*, const T*, std::int64_t) noexcept {}
  OPS_TRANSFORMER_INLINE void add(int part, F32 h) noexcept { squares.add(part, h); }
  OPS_TRANSFORMER_INLINE void add_first(F32 h, int) noexcept { squares.add(0, h); }
  OPS_TRANSFORMER_INLINE Moments moments(float* row, std::int64_t n, float eps) const noexcept {
    return {0.0f, inverse_rms(row, n, squares.total(), eps)};
  }
};

struct MeanAndDeviation {
  ShiftedMoments shifted;
  // The shift: the mean of the row's first elements, which for equal ones is exact.
  template <class T>
  OPS_TRANSFORMER_INLINE void start(const T* x, const T* residual, std::int64_t n) noexcept {
    if (n >= kLanes) {
      F32 h = load(x);
      if (residual) h += load(residual);
      shifted.shift = splat(sum(h) / float(kLanes));
    } else {
      F32 h = load_first(x, int(n));
      if (residual) h += load_first(residual, int(n));
      shifted.shift = splat(h[0]);
    }
  }
  OPS_TRANSFORMER_INLINE void add(int part, F32 h) noexcept { shifted.add(part, h); }
  OPS_TRANSFORMER_INLINE void add_first(F32 h, int lanes) noexcept { shifted.add_first(h, lanes); }
  OPS_TRANSFORMER_INLINE Moments moments(float* row, std::int64_t n, float eps) const noexcept {
    return moments_of(row, n, shifted, eps);
  }
};

// Reads row r, plus the residual, as floats; writes the sum where it is wanted.
template <class Statistic, class T>
Moments gather_row(const NormArgs& args, std::int64_t r, float* row) noexcept {
  const std::int64_t n = args.hidden;
  const T* x = static_cast<const T*>(args.x) + r * args.x_stride;
  const T* residual = args.residual ? static_cast<const T*>(args.residual) + r * args.residual_stride : nullptr;
  T* residual_out = args.residual_out ? static_cast<T*>(args.residual_out) + r * args.residual_out_stride : nullptr;
  Statistic statistic;
  statistic.start(x, residual, n);
  std::int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    for (int j = 0; j < 4; ++j) {
      const std::int64_t k = i + j * kLanes;
      F32 h = load(x + k);
      if (residual) h += load(residual + k);
      if (residual_out) store(residual_out + k, h);
      store(row + k, h);
      statistic.add(j, h);
    }
  }
  for (; i < n; i += kLanes) {
    const int lanes = int(n - i < kLanes ? n - i : kLanes);
    F32 h = load_first(x + i, lanes);
    if (residual) h += load_first(residual + i, lanes);
    if (residual_out) store_first(residual_out + i, h, lanes);
    store_first(row + i, h, lanes);
    statistic.add_first(h, lanes);
  }
  return statistic.moments(row, n, args.eps);
}

// The row after this one, fetched while this one is written: else a core reads and writes by turns. 4096 x 4096 bf16
// out of cache: 7 against 9 to 15 GB/s, f32 9 against 13 (Zen 4, 2 threads, Dec 2026).
struct NextRow {
  const char *x, *residual;  // nullptr: none
  std::int64_t element_bytes;
  OPS_TRANSFORMER_INLINE void fetch(std::int64_t i) const noexcept {
    if (x) __builtin_prefetch(x + i * element_bytes, 0, 2);
    if (residual) __builtin_prefetch(residual + i * element_bytes, 0, 2);
  }
};

OPS_TRANSFORMER_INLINE NextRow next_row(const NormArgs& args, std::int64_t r, std::int64_t last) noexcept {
  const std::int64_t bytes = args.x_dtype == DType::f32 ? 4 : 2;
  if (r + 1 >= last) return {nullptr, nullptr, bytes};
  return {static_cast<const char*>(args.x) + (r + 1) * args.x_stride * bytes,
          args.residual ? static_cast<const char*>(args.residual) + (r + 1) * args.residual_stride * bytes : nullptr,
          bytes};
}

// (row - mean) * inverse_deviation * (weight_offset + weight) + bias + added, which may be written over the row.
template <class Weight, class Out>
OPS_TRANSFORMER_INLINE void scale_into(const NormArgs& args, const Out* added, const float* row, Moments moments,
                                       NextRow next, bool past_caches, Out* out) noexcept {
  const std::int64_t n = args.hidden;
  const auto* weight = static_cast<const Weight*>(args.weight);
  const auto* bias = static_cast<const Weight*>(args.bias);
  const F32 mean = splat(moments.mean), factor = splat(moments.inverse_deviation), offset = splat(args.weight_offset);
  std::int64_t i = 0;
  if (past_caches) {
    for (; i + kLanes <= n; i += kLanes) {
      next.fetch(i);
      F32 y = (load(row + i) - mean) * factor * (load(weight + i) + offset);
      if (bias) y += load(bias + i);
      stream(out + i, y);
    }
  }
  for (; i + kLanes <= n; i += kLanes) {
    next.fetch(i);
    F32 y = (load(row + i) - mean) * factor * (load(weight + i) + offset);
    if (bias) y += load(bias + i);
    if (added) y += load(added + i);
    store(out + i, y);
  }
  if (const int lanes = int(n - i); lanes > 0) {
    F32 y = (load_first(row + i, lanes) - mean) * factor * (load_first(weight + i, lanes) + offset);
    if (bias) y += load_first(bias + i, lanes);
    if (added) y += load_first(added + i, lanes);
    store_first(out + i, y, lanes);
  }
}

template <class Weight, class Out>
void scale_row(const NormArgs& args, std::int64_t r, std::int64_t last, float* row, Moments moments) noexcept {
  const Out* added = args.added ? static_cast<const Out*>(args.added) + r * args.added_stride : nullptr;
  scale_into<Weight, Out>(args, added, row, moments, next_row(args, r, last), args.stream,
                          static_cast<Out*>(args.out) + r * args.out_stride);
}

// Codes of a row by its largest value: y = scale * code, within +-127, half to even. Zeros have scale 0; a NaN or an
// infinity gives codes 0 and scale NaN, so that all that is computed from it is NaN.
template <class Weight>
void quantise_row(const NormArgs& args, std::int64_t r, std::int64_t last, float* row, Moments moments) noexcept {
  scale_into<Weight, float>(args, nullptr, row, moments, next_row(args, r, last), false, row);
  const std::int64_t n = args.hidden;
  auto* codes = static_cast<std::int8_t*>(args.out) + r * args.out_stride;
  float* const scale = args.scales + r * args.scales_stride;
  F32 most{}, poison{};
  for (std::int64_t i = 0; i < n; i += kLanes) {
    const F32 y = load_first(row + i, int(n - i < kLanes ? n - i : kLanes));
    most = max(abs(y), most);
    poison += y - y;  // 0 but for infinities and NaN
  }
  const float largest = max_lane(most), invalid_sum = sum(poison);
  *scale = largest / 127.0f + invalid_sum;
  // A row this small would have no inverse.
  const float lift = largest < 0x1p-60f ? 0x1p80f : 1.0f;
  const F32 inverse = splat(invalid_sum == 0 && largest > 0 ? 127.0f / (largest * lift) : 0.0f), raised = splat(lift);
  for (std::int64_t i = 0; i < n; i += kLanes) {
    const int lanes = int(n - i < kLanes ? n - i : kLanes);
    F32 code = round(load_first(row + i, lanes) * raised * inverse);
    code = code == code ? min(max(code, splat(-127.0f)), splat(127.0f)) : F32{};
    const I32 whole = __builtin_convertvector(code, I32);
    for (int j = 0; j < lanes; ++j) codes[i + j] = std::int8_t(whole[j]);
  }
}

using GatherFn = Moments(const NormArgs&, std::int64_t, float*) noexcept;
using ScaleFn = void(const NormArgs&, std::int64_t, std::int64_t, float*, Moments) noexcept;

template <class Statistic>
GatherFn* gather_of(DType x) noexcept {
  return x == DType::f32 ? gather_row<Statistic, float>
                         : (x == DType::bf16 ? gather_row<Statistic, BFloat16> : gather_row<Statistic, Float16>);
}

template <class Weight>
ScaleFn* scale_of(DType out) noexcept {
  if (out == DType::s8) return quantise_row<Weight>;
  return out == DType::f32 ? scale_row<Weight, float>
                           : (out == DType::bf16 ? scale_row<Weight, BFloat16> : scale_row<Weight, Float16>);
}

void norm_rows(const NormArgs& args, GatherFn* gather, std::int64_t first, std::int64_t last, float* row) noexcept {
  ScaleFn* const scale =
      args.weight_dtype == DType::f32
          ? scale_of<float>(args.out_dtype)
          : (args.weight_dtype == DType::bf16 ? scale_of<BFloat16>(args.out_dtype) : scale_of<Float16>(args.out_dtype));
  for (std::int64_t r = first; r < last; ++r) scale(args, r, last, row, gather(args, r, row));
  if (args.stream) stream_fence();
}

}  // namespace

void rms_norm_rows(const NormArgs& args, std::int64_t first, std::int64_t last, float* row) noexcept {
  norm_rows(args, gather_of<RootMeanSquare>(args.x_dtype), first, last, row);
}
void layer_norm_rows(const NormArgs& args, std::int64_t first, std::int64_t last, float* row) noexcept {
  norm_rows(args, gather_of<MeanAndDeviation>(args.x_dtype), first, last, row);
}

}  // namespace ops_transformer::OPS_TRANSFORMER_ISA
#include "ops_transformer/simd/end.h"
