// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "ops_transformer/kv_cache/kv_pool.h"
#include "ops_transformer/kv_cache/kv_write_kernel.h"

namespace ops_transformer {

/// The checks that writers of new rows share: shapes, dtypes, slots, and that pages and rows don't overlap. Throws
/// InvalidArgument.
void check_new_rows(const char* op, const ConstTensorView& k, const ConstTensorView& v,
                    std::span<const std::int64_t> slots, const KvPages& pages);

/// rows [num_tokens, heads of pages, dim of pages].
void check_token_rows(const char* op, const char* name, const ConstTensorView& rows, std::int64_t num_tokens,
                      const ConstTensorView& pages);

KvCopyArgs copy_args(const ConstTensorView& rows, const TensorView& pages);

}  // namespace ops_transformer
