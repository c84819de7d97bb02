// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "ops_transformer/gemm/linear_kernel.h"
#include "ops_transformer/posembedding/rope_kernel.h"

namespace ops_transformer {

/// Where heads of keys or values go: head h of a token in slot s (its own number without slots) lies at
/// s / page_size * page_stride + s % page_size * slot_stride + h * head_stride.
struct HeadTarget {
  void* data;
  std::int64_t head_stride, slot_stride, page_stride;
  DType dtype;
};

/// Of the base, only num_outputs is read. Weights' rows stand as pack_attention packs them: tiles 2 t and 2 t + 1 of
/// queries and keys hold the first and the second elements of 16 pairs.
struct QkvEpilogueArgs : EpilogueArgs {
  HeadTarget q, k, v;
  std::int64_t num_q_heads, num_kv_heads, head_dim, value_dim;
  std::int64_t page_size;     // of keys and values
  const std::int64_t* slots;  // nullptr: none; -1: neither key nor value is written
  RopeAngles angles;          // half 0: heads are not rotated
  const void* positions;
  std::int64_t position_stride;
  DType position_dtype;
  bool paired;       // else all tiles are in the order of the outputs, and nothing is rotated
  bool interleaved;  // pairs (2i, 2i + 1), else (i, i + head_dim / 2)
};

/// Sums to heads: rotated queries, rotated keys and values into the cache, one rounding each.
OPS_TRANSFORMER_KERNEL(qkv_epilogue, EpilogueFn, generic, avx2, avx512, avx512_bf16)

}  // namespace ops_transformer
