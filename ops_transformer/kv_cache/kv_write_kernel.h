// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "ops_transformer/base/dtype.h"
#include "ops_transformer/base/isa.h"

namespace ops_transformer {

/// Rows of one token, one for each head.
struct KvCopyArgs {
  const void* from;
  void* to;
  std::int64_t from_head_stride, to_head_stride;  // elements
  std::int64_t num_heads, dim;
  DType from_dtype, to_dtype;
};

/// Copies the rows that start at element `from_offset` to `to_offset`; equal dtypes keep their bits.
using KvCopyFn = void(const KvCopyArgs& args, std::int64_t from_offset, std::int64_t to_offset) noexcept;
OPS_TRANSFORMER_KERNEL(kv_copy_token, KvCopyFn, generic, avx2, avx512, avx512_bf16)

}  // namespace ops_transformer
