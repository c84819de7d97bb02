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
  float amplitude;             // of computed cosines and sines
  std::int64_t half;           // rotary_dim / 2
  bool interleaved;
};

/// The angle in 2^-64 turns: wraps with the circle.
inline __attribute__((always_inline)) std::uint64_t turn_at(std::uint64_t turn, std::int64_t position) noexcept {
  return turn * std::uint64_t(position);
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

inline __attribute__((always_inline)) std::int64_t position_at(const void* positions, DType dtype,
                                                               std::int64_t i) noexcept {
  return dtype == DType::i32 ? static_cast<const std::int32_t*>(positions)[i]
                             : static_cast<const std::int64_t*>(positions)[i];
}
inline __attribute__((always_inline)) std::int64_t rope_position(const RopeArgs& args, std::int64_t token) noexcept {
  return position_at(args.positions, args.position_dtype, token * args.position_stride);
}

/// Rotates all heads of tokens [first, last). `scratch` has room for 2 * half floats.
using RopeFn = void(const RopeArgs& args, std::int64_t first, std::int64_t last, float* scratch) noexcept;
OPS_TRANSFORMER_KERNEL(rope_tokens, RopeFn, generic, avx2, avx512, avx512_bf16)

}  // namespace ops_transformer
