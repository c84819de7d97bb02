// SPDX-License-Identifier: Apache-2.0
// levels: generic avx2 avx512 avx512_bf16
#include "ops_transformer/posembedding/rotary_mul.h"
#include "ops_transformer/posembedding/rotary_mul_kernel.h"

#include "ops_transformer/simd/begin.h"

namespace ops_transformer::OPS_TRANSFORMER_ISA {
namespace {

#include "ops_transformer/simd/convert.inl.h"

#include "ops_transformer/simd/interleave.inl.h"

// Rows in scratch are padded, so whole vectors are read and written past their ends.

// (x1, x2) -> (-x2, x1)
void turn_halves(const float* x, float* rotated, std::int64_t dim) noexcept {
  const std::int64_t half = dim / 2;
  for (std::int64_t i = 0; i < half; ++i) rotated[i] = -x[half + i];
  for (std::int64_t i = 0; i < half; ++i) rotated[half + i] = x[i];
}

void turn_pairs(const float* x, float* rotated, std::int64_t dim) noexcept {
  for (std::int64_t i = 0; i < dim; i += 2) {
    rotated[i] = -x[i + 1];
    rotated[i + 1] = x[i];
  }
}

void part_pairs(const float* x, float* parted, std::int64_t dim) noexcept {
  const std::int64_t half = dim / 2;
  std::int64_t i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    const F32 a = load(x + 2 * i), b = load(x + 2 * i + kLanes);
    store(parted + i, even_lanes(a, b));
    store(parted + half + i, odd_lanes(a, b));
  }
  for (; i < half; ++i) {
    parted[i] = x[2 * i];
    parted[half + i] = x[2 * i + 1];
  }
}

// Where the row's own strides put it.
OPS_TRANSFORMER_INLINE std::int64_t offset(const std::int64_t (&stride)[3], const std::int64_t (&at)[3]) noexcept {
  return at[0] * stride[0] + at[1] * stride[1] + at[2] * stride[2];
}

}  // namespace

void rotary_mul_rows(const RotaryMulArgs& args, std::int64_t first, std::int64_t last, float* scratch) noexcept {
  const std::int64_t dim = args.rotary_dim, row = (args.head_dim + 15) / 16 * 16;
  float *const x = scratch, *const rotated = x + row, *const cosines = rotated + row, *const sines = cosines + row,
               *const parted = sines + row;
  const std::int64_t quarter = args.mode == RotaryMode::quarter ? 2 : 1;
  std::int64_t cos_at = INT64_MIN, sin_at = INT64_MIN;
  for (std::int64_t r = first; r < last; ++r) {
    const std::int64_t at[3] = {r / (args.size[1] * args.size[2]), r / args.size[2] % args.size[1], r % args.size[2]};
    read_row(args.x, args.dtype, offset(args.x_stride, at), args.head_dim, x);
    // Heads beside one another often share their factors.
    const std::int64_t cos_now = offset(args.cos_stride, at), sin_now = offset(args.sin_stride, at);
    if (cos_now != cos_at) read_row(args.cos, args.angle_dtype, cos_at = cos_now, dim, cosines);
    if (sin_now != sin_at) read_row(args.sin, args.angle_dtype, sin_at = sin_now, dim, sines);
    const float* base = x;
    if (args.rotated) {
      read_row(args.rotated, args.dtype, offset(args.rotated_stride, at), dim, rotated);
    } else if (args.mode == RotaryMode::interleave) {
      turn_pairs(x, rotated, dim);
    } else if (args.mode == RotaryMode::interleave_half) {
      part_pairs(x, parted, dim);
      turn_halves(parted, rotated, dim);
      base = parted;
    } else {
      for (std::int64_t part = 0; part < quarter; ++part) {
        turn_halves(x + part * dim / quarter, rotated + part * dim / quarter, dim / quarter);
      }
    }
    const std::int64_t to = offset(args.out_stride, at);
    for (std::int64_t i = 0; i < args.head_dim; i += kLanes) {
      const int lanes = int(args.head_dim - i < kLanes ? args.head_dim - i : kLanes);
      F32 y = load(x + i);
      if (i < dim) {
        const F32 turned = fma(load(base + i), load(cosines + i), load(rotated + i) * load(sines + i));
        if (i + kLanes <= dim) {
          y = turned;
        } else {
          float mixed[kLanes];
          store(mixed, y);
          store_first(mixed, turned, int(dim - i));
          y = load(mixed);
        }
      }
      store_any(args.out, args.dtype, to + i, y, lanes);
    }
  }
}

}  // namespace ops_transformer::OPS_TRANSFORMER_ISA
#include "ops_transformer/simd/end.h"
