// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "ops_transformer/base/dtype.h"
#include "ops_transformer/base/isa.h"

namespace ops_transformer {

/// Where rows of one kind go: element i of head h in slot s. Chunks of chunk_len elements are contiguous and
/// chunk_stride apart; one chunk where chunk_len is the row's length.
struct CacheTarget {
  void* data;
  const float *scales, *offsets;  // [dim], of codes round(x * scale + offset); nullptr: 1, 0
  std::int64_t dim;
  std::int64_t page_stride, head_stride, slot_stride, chunk_stride;
  std::int64_t chunk_len, page_size;
  void* out;                   // the same rows unquantised, [num_heads, tokens, dim] in the dtype of kv; nullptr: none
  std::int64_t out_head_rows;  // tokens of a head in out
  DType dtype;
};

struct KvRmsNormRopeArgs {
  const void* kv;
  const void* v;  // nullptr: the normalised part goes to the values' cache
  const float* gamma;
  const float *cosines, *sines;  // a row of rope_dim for each token
  const std::int64_t* slots;     // -1: the token is written to no cache
  CacheTarget k, c;
  std::int64_t num_heads, norm_len, rope_begin, rope_dim;
  std::int64_t kv_token_stride, kv_head_stride, v_token_stride, v_head_stride, cos_stride, sin_stride;
  DType dtype;  // of kv and v
  float eps;
};

/// Tokens [first, last). `scratch` has room for 2 * (the longest row, rounded up to 16) floats.
using KvRmsNormRopeFn = void(const KvRmsNormRopeArgs& args, std::int64_t first, std::int64_t last,
                             float* scratch) noexcept;
OPS_TRANSFORMER_KERNEL(kv_rms_norm_rope_tokens, KvRmsNormRopeFn, generic, avx2, avx512, avx512_bf16)

}  // namespace ops_transformer
