// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/kv_cache/paged_kv_view.h"

#include <fmt/format.h>

#include "ops_transformer/base/validate.h"

namespace ops_transformer {
namespace {

void check_pages(std::string_view operation, const ConstTensorView& k, const ConstTensorView& v) {
  check_rank(operation, "k pages", k, 4);
  check_dtype(operation, "k pages", k, {DType::f32, DType::bf16, DType::f16, DType::s8});
  check_rows(operation, "k pages", k);
  check_shape(operation, "v pages", v, {k.size(0), k.size(1), k.size(2), -1});
  check_dtype(operation, "v pages", v, {k.dtype()});
  check_rows(operation, "v pages", v);
  if (k.size(2) < 1) invalid(operation, fmt::format("page_size is {}, must be at least 1", k.size(2)));
}

}  // namespace

PagedKvView PagedKvView::from_arrays(const ConstTensorView& k, const ConstTensorView& v,
                                     const ConstTensorView& page_table, const ConstTensorView& kv_lens) {
  constexpr const char* kOp = "paged_kv_view";
  check_pages(kOp, k, v);
  check_rank(kOp, "page_table", page_table, 2);
  check_dtype(kOp, "page_table", page_table, {DType::i32});
  check_rows(kOp, "page_table", page_table);
  check_shape(kOp, "kv_lens", kv_lens, {page_table.size(0)});
  check_dtype(kOp, "kv_lens", kv_lens, {DType::i32, DType::i64});
  PagedKvView view{k, v, {}};
  view.sequences.reserve(std::size_t(page_table.size(0)));
  for (std::int64_t b = 0; b < page_table.size(0); ++b) {
    const std::int64_t at = b * kv_lens.stride(0);
    const std::int64_t kv_len =
        kv_lens.dtype() == DType::i32 ? kv_lens.as<std::int32_t>()[at] : kv_lens.as<std::int64_t>()[at];
    view.sequences.push_back({page_table.as<std::int32_t>() + b * page_table.stride(0), page_table.size(1), kv_len});
  }
  return view;
}

void check_paged_kv(std::string_view operation, const PagedKvView& view) {
  check_pages(operation, view.k, view.v);
  const std::int64_t num_pages = view.num_pages(), page_size = view.page_size();
  for (std::size_t b = 0; b < view.sequences.size(); ++b) {
    const PagedSequence& sequence = view.sequences[b];
    if (sequence.kv_len < 0) invalid(operation, fmt::format("kv_lens[{}] is {}, must be >= 0", b, sequence.kv_len));
    const std::int64_t needed = sequence.kv_len / page_size + (sequence.kv_len % page_size != 0);
    if (needed > sequence.table_len) {
      invalid(operation, fmt::format("kv_lens[{}] is {} and needs {} pages of {}, page_table has {}", b,
                                     sequence.kv_len, needed, page_size, sequence.table_len));
    }
    std::int64_t wrong = 0;
    for (std::int64_t i = 0; i < needed; ++i) wrong += sequence.pages[i] < 0 || sequence.pages[i] >= num_pages;
    if (wrong == 0) continue;
    for (std::int64_t i = 0; i < needed; ++i) {
      const std::int32_t page = sequence.pages[i];
      if (page < 0 || page >= num_pages) {
        invalid(operation, fmt::format("page_table[{}][{}] (batch {}, slot {}) is {}, must be from 0 to {}", b, i, b, i,
                                       page, num_pages - 1));
      }
    }
  }
}

}  // namespace ops_transformer
