// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/kv_cache/kv_write.h"

#include <fmt/format.h>

#include <algorithm>

#include "ops_transformer/base/validate.h"
#include "ops_transformer/kv_cache/kv_write_kernel.h"

namespace ops_transformer {
namespace {

// Elements that one item moves; below it a fork costs more than it saves.
constexpr std::int64_t kElementsPerItem = 16384;

void check_rows_of_tokens(const char* op, const char* name, const ConstTensorView& rows, std::int64_t num_tokens,
                          const ConstTensorView& pages) {
  check_shape(op, name, rows, {num_tokens, pages.size(1), pages.size(3)});
  check_dtype(op, name, rows, {DType::f32, DType::bf16});
  check_rows(op, name, rows);
}

KvCopyArgs copy_args(const void* from, DType from_dtype, std::int64_t from_head_stride, void* to, DType to_dtype,
                     std::int64_t to_head_stride, const ConstTensorView& pages) {
  return {from, to, from_head_stride, to_head_stride, pages.size(1), pages.size(3), from_dtype, to_dtype};
}

// body(token) for each token, a few thousand elements at a time.
template <class Body>
void for_tokens(Context& context, std::int64_t num_tokens, std::int64_t elements_per_token, Body&& body) {
  const std::int64_t per_item =
      std::max<std::int64_t>(1, kElementsPerItem / std::max<std::int64_t>(1, elements_per_token));
  CallScope call(context);
  call.parallel_for(std::size_t((num_tokens + per_item - 1) / per_item), [&](std::size_t item, int) {
    const std::int64_t first = std::int64_t(item) * per_item;
    for (std::int64_t token = first; token < std::min(num_tokens, first + per_item); ++token) body(token);
  });
}

}  // namespace

void kv_write(Context& context, const ConstTensorView& k, const ConstTensorView& v, std::span<const std::int64_t> slots,
              const KvPages& pages) {
  constexpr const char* kOp = "kv_write";
  check_paged_kv(kOp, {pages.k, pages.v, {}});
  const auto num_tokens = std::int64_t(slots.size());
  check_rows_of_tokens(kOp, "k", k, num_tokens, pages.k);
  check_rows_of_tokens(kOp, "v", v, num_tokens, pages.v);
  check_dtype(kOp, "v", v, {k.dtype()});
  const std::int64_t page_size = pages.k.size(2), num_pages = pages.k.size(0);
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (slots[i] < -1 || slots[i] / page_size >= num_pages) {
      invalid(kOp, fmt::format("slots[{}] is {}, must be -1 or from 0 to {}", i, slots[i], num_pages * page_size - 1));
    }
  }
  for (const TensorView* plane : {&pages.k, &pages.v}) {
    check_no_overlap(kOp, "pages", *plane, "k", k);
    check_no_overlap(kOp, "pages", *plane, "v", v);
  }
  const KvCopyArgs k_args =
      copy_args(k.data(), k.dtype(), k.stride(1), pages.k.data(), pages.k.dtype(), pages.k.stride(1), pages.k);
  const KvCopyArgs v_args =
      copy_args(v.data(), v.dtype(), v.stride(1), pages.v.data(), pages.v.dtype(), pages.v.stride(1), pages.v);
  KvCopyFn* copy = kv_copy_token.at(context.isa());
  const std::int64_t elements = pages.k.size(1) * (pages.k.size(3) + pages.v.size(3));
  for_tokens(context, num_tokens, elements, [&](std::int64_t token) {
    const std::int64_t slot = slots[std::size_t(token)];
    if (slot < 0) return;
    const std::int64_t page = slot / page_size, row = slot % page_size;
    copy(k_args, token * k.stride(0), page * pages.k.stride(0) + row * pages.k.stride(2));
    copy(v_args, token * v.stride(0), page * pages.v.stride(0) + row * pages.v.stride(2));
  });
}

void kv_gather(Context& context, const PagedKvView& cache, std::size_t sequence, const TensorView& k_out,
               const TensorView& v_out) {
  constexpr const char* kOp = "kv_gather";
  check_paged_kv(kOp, cache);
  if (sequence >= cache.sequences.size()) {
    invalid(kOp, fmt::format("sequence is {}, the cache has {}", sequence, cache.sequences.size()));
  }
  const PagedSequence& source = cache.sequences[sequence];
  check_rows_of_tokens(kOp, "k_out", k_out, source.kv_len, cache.k);
  check_rows_of_tokens(kOp, "v_out", v_out, source.kv_len, cache.v);
  check_dtype(kOp, "v_out", v_out, {k_out.dtype()});
  for (const ConstTensorView* plane : {&cache.k, &cache.v}) {
    check_no_overlap(kOp, "k_out", k_out, "pages", *plane);
    check_no_overlap(kOp, "v_out", v_out, "pages", *plane);
  }
  check_no_overlap(kOp, "k_out", k_out, "v_out", v_out);
  const KvCopyArgs k_args = copy_args(cache.k.data(), cache.k.dtype(), cache.k.stride(1), k_out.data(), k_out.dtype(),
                                      k_out.stride(1), cache.k);
  const KvCopyArgs v_args = copy_args(cache.v.data(), cache.v.dtype(), cache.v.stride(1), v_out.data(), v_out.dtype(),
                                      v_out.stride(1), cache.v);
  KvCopyFn* copy = kv_copy_token.at(context.isa());
  const std::int64_t elements = cache.num_kv_heads() * (cache.head_dim() + cache.value_dim());
  for_tokens(context, source.kv_len, elements, [&](std::int64_t token) {
    const std::int64_t page = source.pages[token / cache.page_size()], row = token % cache.page_size();
    copy(k_args, page * cache.k.stride(0) + row * cache.k.stride(2), token * k_out.stride(0));
    copy(v_args, page * cache.v.stride(0) + row * cache.v.stride(2), token * v_out.stride(0));
  });
}

}  // namespace ops_transformer
