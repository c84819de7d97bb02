// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/kv_cache/kv_write.h"

#include <fmt/format.h>

#include "ops_transformer/base/validate.h"
#include "ops_transformer/kv_cache/kv_validate.h"
#include "ops_transformer/kv_cache/kv_write_kernel.h"
#include "ops_transformer/profiler/profiler.h"

namespace ops_transformer {
namespace {

KvCopyArgs reversed(const ConstTensorView& pages, const TensorView& rows) {
  return {pages.data(),  rows.data(),   pages.stride(1), rows.stride(1),
          pages.size(1), pages.size(3), pages.dtype(),   rows.dtype()};
}

// body(token) for each token.
template <class Body>
void for_tokens(Context& context, const char* op, DType from, DType to, std::int64_t num_tokens,
                std::int64_t elements_per_token, Body&& body) {
  const auto bytes = std::int64_t(element_bytes(from) + element_bytes(to));
  Zone zone(context, op, {.bytes = num_tokens * elements_per_token * bytes});
  CallScope call(context);
  call.parallel_rows(num_tokens, elements_per_token, [&](std::int64_t first, std::int64_t last, int) {
    for (std::int64_t token = first; token < last; ++token) body(token);
  });
}

}  // namespace

void kv_write(Context& context, const ConstTensorView& k, const ConstTensorView& v, std::span<const std::int64_t> slots,
              const KvPages& pages) {
  constexpr const char* kOp = "kv_write";
  check_new_rows(kOp, k, v, slots, pages);
  const auto num_tokens = std::int64_t(slots.size());
  const std::int64_t page_size = pages.k.size(2);
  const KvCopyArgs k_args = copy_args(k, pages.k), v_args = copy_args(v, pages.v);
  KvCopyFn* copy = kv_copy_token.at(context.isa());
  const std::int64_t elements = pages.k.size(1) * (pages.k.size(3) + pages.v.size(3));
  for_tokens(context, kOp, k.dtype(), pages.k.dtype(), num_tokens, elements, [&](std::int64_t token) {
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
  check_dtype(kOp, "k pages", cache.k, {DType::f32, DType::bf16});
  if (sequence >= cache.sequences.size()) {
    invalid(kOp, fmt::format("sequence is {}, the cache has {}", sequence, cache.sequences.size()));
  }
  const PagedSequence& source = cache.sequences[sequence];
  check_token_rows(kOp, "k_out", k_out, source.kv_len, cache.k);
  check_token_rows(kOp, "v_out", v_out, source.kv_len, cache.v);
  check_dtype(kOp, "v_out", v_out, {k_out.dtype()});
  for (const ConstTensorView* plane : {&cache.k, &cache.v}) {
    check_no_overlap(kOp, "k_out", k_out, "pages", *plane);
    check_no_overlap(kOp, "v_out", v_out, "pages", *plane);
  }
  check_no_overlap(kOp, "k_out", k_out, "v_out", v_out);
  check_output(kOp, "k_out", k_out);
  check_output(kOp, "v_out", v_out);
  const KvCopyArgs k_args = reversed(cache.k, k_out), v_args = reversed(cache.v, v_out);
  KvCopyFn* copy = kv_copy_token.at(context.isa());
  const std::int64_t elements = cache.num_kv_heads() * (cache.head_dim() + cache.value_dim());
  for_tokens(context, kOp, cache.k.dtype(), k_out.dtype(), source.kv_len, elements, [&](std::int64_t token) {
    const std::int64_t page = source.pages[token / cache.page_size()], row = token % cache.page_size();
    copy(k_args, page * cache.k.stride(0) + row * cache.k.stride(2), token * k_out.stride(0));
    copy(v_args, page * cache.v.stride(0) + row * cache.v.stride(2), token * v_out.stride(0));
  });
}

}  // namespace ops_transformer
