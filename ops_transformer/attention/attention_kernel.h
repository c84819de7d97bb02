// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops_transformer/base/dtype.h"
#include "ops_transformer/base/isa.h"

namespace ops_transformer {

/// What is the same for every item of a call. Strides in elements.
struct AttentionArgs {
  const void* q;
  const void* k;
  const void* v;
  void* out;
  float* lse;       // nullptr: not wanted
  float* partials;  // rows of partial_stride floats: o[value_dim], then at partial_stride - 2 the maximum and the sum
  std::int64_t q_row_stride, q_head_stride;
  std::int64_t k_row_stride, k_head_stride, k_page_stride;
  std::int64_t v_row_stride, v_head_stride, v_page_stride;
  std::int64_t out_row_stride, out_head_stride, lse_row_stride, lse_head_stride;
  std::int64_t partial_stride;
  std::int64_t page_size;                  // keys that lie row_stride apart before the next page
  std::int64_t window_left, window_right;  // keys seen before and after a query's own position
  int head_dim, value_dim, group;          // group: query heads of one key head
  int key_tile;
  float score_scale;  // |softmax_scale| log2(e): the kernels work in powers of two
  bool negate_q;      // softmax_scale < 0
  DType q_dtype, kv_dtype, out_dtype;
};

/// Offsets in elements. The sequence's rows are numbered query by query: row = query * group + head in group.
struct AttentionSequence {
  std::int64_t q_offset, k_offset, v_offset, out_offset, lse_offset;
  const std::int32_t* pages;  // nullptr: contiguous
  std::int64_t q_len, kv_len;
};

/// Rows [first_row, last_row) of one key head against keys [first_key, last_key).
struct AttentionItem {
  std::int32_t sequence, kv_head;
  std::int64_t first_row, last_row;
  std::int64_t first_key, last_key;
  std::int64_t partial;  // first row of its state in `partials`; -1: the item sees all keys and writes the output
  bool by_rows;          // flash_decode's: one query, at most kMaxDecodeRows rows
};

/// A row of a key head: its query and its query head.
struct RowPlace {
  std::int64_t query, head;
};
__attribute__((always_inline)) inline RowPlace row_place(const AttentionArgs& args, std::int64_t kv_head,
                                                         std::int64_t row) noexcept {
  return {row / args.group, kv_head * args.group + row % args.group};
}
__attribute__((always_inline)) inline std::int64_t q_offset(const AttentionArgs& args,
                                                            const AttentionSequence& sequence,
                                                            RowPlace place) noexcept {
  return sequence.q_offset + place.query * args.q_row_stride + place.head * args.q_head_stride;
}
__attribute__((always_inline)) inline std::int64_t out_offset(const AttentionArgs& args,
                                                              const AttentionSequence& sequence,
                                                              RowPlace place) noexcept {
  return sequence.out_offset + place.query * args.out_row_stride + place.head * args.out_head_stride;
}
/// nullptr: not wanted.
__attribute__((always_inline)) inline float* lse_place(const AttentionArgs& args, const AttentionSequence& sequence,
                                                       RowPlace place) noexcept {
  if (!args.lse) return nullptr;
  return args.lse + sequence.lse_offset + place.query * args.lse_row_stride + place.head * args.lse_head_stride;
}

/// Most query blocks that one item of flash_tiles holds.
inline constexpr int kMaxBlocksPerItem = 8;
inline constexpr int kMaxKeyTile = 256;

/// scratch: AttentionPlan::scratch_bytes, 64-byte aligned.
using AttentionFn = void(const AttentionArgs& args, const AttentionSequence& sequence, const AttentionItem& item,
                         std::byte* scratch) noexcept;

/// Many rows: queries in the lanes, keys and dims as broadcast rows (S^T and O^T). Any dtypes, computed in f32.
OPS_TRANSFORMER_KERNEL(flash_tiles, AttentionFn, generic, avx2, avx512, avx512_bf16)
/// The same with bf16 dot products; keys and values are bf16, queries are rounded to it.
#if defined(__x86_64__)
OPS_TRANSFORMER_KERNEL(flash_tiles_bf16, AttentionFn, avx512_bf16)
#else
inline constexpr Kernel<AttentionFn> flash_tiles_bf16{};
#endif
/// One query and at most kMaxDecodeRows rows, which all see the same keys: keys are read as rows, once for the group.
OPS_TRANSFORMER_KERNEL(flash_decode, AttentionFn, generic, avx2, avx512, avx512_bf16)
inline constexpr int kMaxDecodeRows = 8;
inline constexpr int kMaxHeadDim = 768;

/// A row's result over part of the keys: o = sum of w v and l = sum of w, with weights w relative to the maximum m.
struct AttentionPart {
  const void* o;
  DType o_dtype;
  float m, l;
};

/// Units of m: a weight is 2^(m * to_log2), the natural logarithm of one m * to_ln.
struct AttentionUnits {
  float to_log2, to_ln;
};

struct MergedRow {
  void* out;
  DType out_dtype;
  std::int64_t out_offset;
  int value_dim;
  float* lse;  // nullptr: not wanted
};

/// The one way in which partial results become one. Parts with l = 0 are not read; none left: out 0, lse -inf.
/// `weights`: scratch for num_parts floats.
using MergeRowFn = void(const AttentionPart* parts, int num_parts, AttentionUnits units, const MergedRow& row,
                        float* weights) noexcept;
OPS_TRANSFORMER_KERNEL(merge_attention_row, MergeRowFn, generic, avx2, avx512, avx512_bf16)

}  // namespace ops_transformer
