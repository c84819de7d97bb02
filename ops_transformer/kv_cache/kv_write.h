// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "ops_transformer/base/context.h"
#include "ops_transformer/kv_cache/kv_pool.h"

namespace ops_transformer {

/// Writes rows of new tokens to their slots, converted to the dtype of the pages (bits are kept where it is the same).
///
/// k     [num_tokens, num_kv_heads, head_dim]   f32 | bf16, last dimension contiguous
/// v     [num_tokens, num_kv_heads, value_dim]  dtype of k
/// slots [num_tokens]  page * page_size + row, each named once; -1 skips the token: its rows are not read
/// Throws InvalidArgument, which names the argument; then nothing has been written.
OPS_TRANSFORMER_API void kv_write(Context& context, const ConstTensorView& k, const ConstTensorView& v,
                                  std::span<const std::int64_t> slots, const KvPages& pages);

/// Reads a sequence back: the reverse of kv_write for all its tokens.
///
/// k_out [kv_len, num_kv_heads, head_dim]   f32 | bf16, last dimension contiguous
/// v_out [kv_len, num_kv_heads, value_dim]  dtype of k_out
/// Throws InvalidArgument (also for a bad page table: see check_paged_kv); then nothing has been written.
OPS_TRANSFORMER_API void kv_gather(Context& context, const PagedKvView& cache, std::size_t sequence,
                                   const TensorView& k_out, const TensorView& v_out);

}  // namespace ops_transformer
