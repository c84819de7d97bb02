// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "ops_transformer/kv_cache/kv_write_kernel.h"
#include "ops_transformer/posembedding/rope_kernel.h"

namespace ops_transformer {

struct RopeKvWriteArgs {
  RopeArgs q;                                   // x and out are the same
  KvCopyArgs k;                                 // rotated on the way
  KvCopyArgs v;                                 // copied
  std::int64_t k_token_stride, v_token_stride;  // of the new rows
  std::int64_t k_page_stride, k_slot_stride, v_page_stride, v_slot_stride;
  std::int64_t page_size;
  const std::int64_t* slots;
  const float *q_norm, *k_norm;  // [head_dim]; nullptr: heads are not normalised
  float norm_eps;
};

/// Tokens [first, last). `scratch` has room for 2 * half + head_dim floats.
using RopeKvWriteFn = void(const RopeKvWriteArgs& args, std::int64_t first, std::int64_t last, float* scratch) noexcept;
OPS_TRANSFORMER_KERNEL(rope_kv_write_tokens, RopeKvWriteFn, generic, avx2, avx512, avx512_bf16)

}  // namespace ops_transformer
