// SPDX-License-Identifier: Apache-2.0
// Where keys and results of an item lie. Included inside a level's region, after
// attention_state.inl.h and simd/convert.inl.h.

OPS_TRANSFORMER_INLINE std::int64_t element_bytes_of(DType dtype) noexcept {
  return dtype == DType::f32 ? 4 : dtype == DType::s8 ? 1 : 2;
}

// To the second level: there a core has more misses in flight than the first level's buffers hold. Decode with 9:3
// heads, dim 64, 4096 keys of bf16 from memory: 17.8 GB/s with prefetch to the first level, 16.4 with none, 30.3 so, of
// 35 that a pure read gives (EPYC Zen 4, 2 threads, Nov 2026).
OPS_TRANSFORMER_INLINE void prefetch_to_l2(const void* p) noexcept { __builtin_prefetch(p, 0, 2); }
OPS_TRANSFORMER_INLINE void prefetch_row(const void* p, std::int64_t bytes) noexcept {
  for (std::int64_t i = 0; i < bytes; i += 64) prefetch_to_l2(static_cast<const char*>(p) + i);
}

// Element offsets of the rows of keys [first, first + num_keys).
[[maybe_unused]] void locate_keys(const AttentionArgs& args, const AttentionSequence& sequence, int kv_head,
                                  std::int64_t first, std::int64_t num_keys, std::int64_t* k_offset,
                                  std::int64_t* v_offset) noexcept {
  for (std::int64_t i = 0; i < num_keys;) {
    std::int64_t page = 0, row = first + i, in_page = num_keys - i;
    if (sequence.pages) {
      page = sequence.pages[row / args.page_size];
      row %= args.page_size;
      in_page = in_page < args.page_size - row ? in_page : args.page_size - row;
    }
    std::int64_t k =
        sequence.k_offset + page * args.k_page_stride + kv_head * args.k_head_stride + row * args.k_row_stride;
    std::int64_t v =
        sequence.v_offset + page * args.v_page_stride + kv_head * args.v_head_stride + row * args.v_row_stride;
    for (const std::int64_t end = i + in_page; i < end; ++i, k += args.k_row_stride, v += args.v_row_stride) {
      k_offset[i] = k;
      v_offset[i] = v;
    }
  }
}

// Queries over bf16 keys are rounded to bf16 at every level.
OPS_TRANSFORMER_INLINE F32 load_query(const AttentionArgs& args, std::int64_t offset, int lanes) noexcept {
  const F32 value = load_any(args.q, args.q_dtype, offset, lanes);
  return args.kv_dtype == DType::bf16 ? widen_bf16(narrow_bf16(value)) : value;
}
// The sink of a head as a maximum, in powers of two; -inf where there is none.
OPS_TRANSFORMER_INLINE float sink_of(const AttentionArgs& args, std::int64_t head) noexcept {
  return args.sinks ? args.sinks[head] * kLog2E : kMinusInfinity;
}
OPS_TRANSFORMER_INLINE float* partial_row(const AttentionArgs& args, const AttentionItem& item,
                                          std::int64_t row) noexcept {
  return args.partials + (item.partial + row - item.first_row) * args.partial_stride;
}
OPS_TRANSFORMER_INLINE void store_partial_sums(const AttentionArgs& args, float* partial, float m, float l) noexcept {
  partial[args.partial_stride - 2] = m;
  partial[args.partial_stride - 1] = l;
}
