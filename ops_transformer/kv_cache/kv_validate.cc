// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/kv_cache/kv_validate.h"

#include <fmt/format.h>

#include "ops_transformer/base/validate.h"

namespace ops_transformer {

void check_token_rows(const char* op, const char* name, const ConstTensorView& rows, std::int64_t num_tokens,
                      const ConstTensorView& pages) {
  check_shape(op, name, rows, {num_tokens, pages.size(1), pages.size(3)});
  check_dtype(op, name, rows, {DType::f32, DType::bf16});
  check_rows(op, name, rows);
}

void check_new_rows(const char* op, const ConstTensorView& k, const ConstTensorView& v,
                    std::span<const std::int64_t> slots, const KvPages& pages) {
  check_paged_kv(op, {pages.k, pages.v, {}});
  check_dtype(op, "k pages", pages.k, {DType::f32, DType::bf16});
  check_token_rows(op, "k", k, std::int64_t(slots.size()), pages.k);
  check_token_rows(op, "v", v, std::int64_t(slots.size()), pages.v);
  check_dtype(op, "v", v, {k.dtype()});
  const std::int64_t page_size = pages.k.size(2), num_pages = pages.k.size(0);
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (slots[i] < -1 || slots[i] / page_size >= num_pages) {
      invalid(op, fmt::format("slots[{}] is {}, must be -1 or from 0 to {}", i, slots[i], num_pages * page_size - 1));
    }
  }
  check_output(op, "k pages", pages.k);
  check_output(op, "v pages", pages.v);
  for (const TensorView* plane : {&pages.k, &pages.v}) {
    check_no_overlap(op, "pages", *plane, "k", k);
    check_no_overlap(op, "pages", *plane, "v", v);
  }
}

KvCopyArgs copy_args(const ConstTensorView& rows, const TensorView& pages) {
  return {rows.data(),   pages.data(),  rows.stride(1), pages.stride(1),
          pages.size(1), pages.size(3), rows.dtype(),   pages.dtype()};
}

}  // namespace ops_transformer
