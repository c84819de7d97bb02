// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "ops_transformer/base/export.h"
#include "ops_transformer/base/tensor_view.h"

namespace ops_transformer {

/// One sequence of a paged cache: key t lies in page pages[t / page_size], slot t % page_size.
struct PagedSequence {
  const std::int32_t* pages;
  std::int64_t table_len;  // entries that `pages` has; those past the last needed one are never read
  std::int64_t kv_len;     // keys
};

/// Keys and values of several sequences in pages, for one layer. Not owned: pointers into a KvPool or into the caller's
/// arrays (after vLLM's PagedAttention, Kwon et al., 2023).
///
/// k [num_pages, num_kv_heads, page_size, head_dim], v [num_pages, num_kv_heads, page_size, value_dim]; f32 | bf16 |
/// f16 | s8 (of which kv_write and kv_gather take the first two), last dimension contiguous, other strides free: a
/// [page, slot, head, dim] cache is passed with its strides swapped.
struct PagedKvView {
  ConstTensorView k;
  ConstTensorView v;
  std::vector<PagedSequence> sequences;

  std::int64_t num_pages() const { return k.size(0); }
  std::int64_t num_kv_heads() const { return k.size(1); }
  std::int64_t page_size() const { return k.size(2); }
  std::int64_t head_dim() const { return k.size(3); }
  std::int64_t value_dim() const { return v.size(3); }

  /// page_table [batch, max_pages] i32, kv_lens [batch] i32 | i64. The arrays must outlive the view. Every consumer
  /// checks them again (check_paged_kv), since they are untrusted.
  /// Throws InvalidArgument (shape, dtype).
  OPS_TRANSFORMER_API static PagedKvView from_arrays(const ConstTensorView& k, const ConstTensorView& v,
                                                     const ConstTensorView& page_table, const ConstTensorView& kv_lens);
};

/// Throws InvalidArgument where shapes or dtypes don't fit together, a length is negative or longer than its table, or
/// an entry that is needed names no page: the message gives batch, slot and value. Entries not needed are not read.
OPS_TRANSFORMER_API void check_paged_kv(std::string_view operation, const PagedKvView& view);

}  // namespace ops_transformer
