// SPDX-License-Identifier: Apache-2.0
// levels: generic avx2 avx512 avx512_bf16
#include "ops_transformer/kv_cache/kv_write_kernel.h"

#include "ops_transformer/simd/begin.h"

namespace ops_transformer::OPS_TRANSFORMER_ISA {
namespace {

#include "ops_transformer/simd/convert.inl.h"

#include "ops_transformer/kv_cache/kv_copy.inl.h"

}  // namespace

void kv_copy_token(const KvCopyArgs& args, std::int64_t from_offset, std::int64_t to_offset) noexcept {
  copy_token(args, from_offset, to_offset);
}

}  // namespace ops_transformer::OPS_TRANSFORMER_ISA
#include "ops_transformer/simd/end.h"
