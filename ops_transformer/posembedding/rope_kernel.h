// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "ops_transformer/base/dtype.h"
#include "ops_transformer/base/isa.h"

namespace ops_transformer {

/// Where a kernel finds its angles: a table for positions 0 … table_len - 1, turns for all others.
struct RopeAngles {
  const float* cosines;  // of position 0
  const float* sines;
  std::int64_t row_stride;  // elements between positions, of both
  std::int64_t table_len;
  const std::uint64_t* turns;  // [half], in 2^-64 turns a position; nullptr: every position is in the table
  double position_scale;
  float amplitude;    // of computed cosines and sines
  std::int64_t half;  // rotary_dim / 2
  bool interleaved;
};

struct ScaledPosition {
  std::int64_t whole;
  std::uint32_t fraction;  // in 2^-32
};
inline __attribute__((always_inline)) ScaledPosition scale_position(std::int64_t position, double scale) noexcept {
  if (scale == 1.0) return {position, 0};
  const double scaled = double(position) / scale;
  std::int64_t whole = std::int64_t(scaled);
  if (double(whole) > scaled) --whole;
  return {whole, std::uint32_t((scaled - double(whole)) * 0x1p32)};
}

/// The angle in 2^-64 turns: wraps with the circle.
inline __attribute__((always_inline)) std::uint64_t turn_at(std::uint64_t turn, ScaledPosition position) noexcept {
  return turn * std::uint64_t(position.whole) + (turn >> 32) * position.fraction;
}

struct RopeArgs {
  const void* x;
  void* out;
  const void* positions;
  std::int64_t num_heads, head_dim;
  std::int64_t x_token_stride, x_head_stride, out_token_stride, out_head_stride, position_stride;  // elements
  RopeAngles angles;
  DType dtype, position_dtype;
};

inline __attribute__((always_inline)) std::int64_t rope_position(const RopeArgs& args, std::int64_t token) noexcept {
  const std::int64_t i = token * args.position_stride;
  return args.position_dtype == DType::i32 ? static_cast<const std::int32_t*>(args.positions)[i]
                                           : static_cast<const std::int64_t*>(args.positions)[i];
}

/// Rotates all heads of tokens [first, last). `scratch` has room for 2 * half floats.
using RopeFn = void(const RopeArgs& args, std::int64_t first, std::int64_t last, float* scratch) noexcept;
OPS_TRANSFORMER_KERNEL(rope_tokens, RopeFn, generic, avx2, avx512, avx512_bf16)

}  // namespace ops_transformer
