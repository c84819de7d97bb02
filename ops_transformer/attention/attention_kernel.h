// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops_transformer/base/dtype.h"
#include "ops_transformer/base/isa.h"
#include "ops_transformer/posembedding/rope_kernel.h"

namespace ops_transformer {

/// One value for each query head, query and key, read where it lies. Strides in elements, 0 where it is broadcast.
struct ScoreGrid {
  const void* data;  // nullptr: none
  DType dtype;
  std::int64_t head_stride, row_stride, key_stride;
};

/// An f32 output with a value (or eight equal ones) for each query head and query.
struct RowOutput {
  float* data;  // nullptr: not wanted
  std::int64_t row_stride, head_stride;
};

/// What happens to a score between the products and the softmax, in this order: scaled_bias is added to it, it is
/// scaled, capped, bias is added to it, ALiBi's distance is taken off, and where `visible` is false it is -inf.
struct ScoreRule {
  bool any;               // false: only scaled, and all else here is unset
  float cap_in, cap_out;  // cap_out tanh(cap_in score), in powers of two; 0: no cap
  ScoreGrid bias;         // times bias_scale
  bool bias_first;        // before the scale
  float bias_scale;
  const float* alibi_slopes;  // [num_q_heads]; nullptr: none
  ScoreGrid visible;          // boolean
};

/// Numbers for each token or each channel of an int8 cache, read where they lie. Strides in elements, 0 where they are
/// broadcast; page_stride also leads from batch to batch of contiguous keys.
struct CodeGrid {
  const float* data;  // nullptr: none
  std::int64_t page_stride, head_stride, row_stride, dim_stride;
};
/// An int8 code stands for (code + offset) * scale.
struct CodeValues {
  CodeGrid scale, offset;
  bool by_token;  // else by channel, or the same for all
};

/// A weight is kept where its random word is less than keep_below: see FlashAttentionOptions::dropout_seed.
struct DropoutSeed {
  bool any;
  std::uint32_t low, high, keep_below;
};

/// Where rotated keys go: slot s is page s / page_size, row s % page_size. Strides in elements.
struct RotatedKeys {
  void* data;  // nullptr: nowhere
  DType dtype;
  const std::int64_t* slots;  // of the batch's keys, -1 for none; nullptr: key j of sequence b is row j of page b
  std::int64_t page_size, page_stride, head_stride, row_stride;
};

/// What is the same for every item of a call. Strides in elements.
struct AttentionArgs {
  const void* q;
  const void* k;
  const void* v;
  void* out;
  RowOutput lse, softmax_max, softmax_sum;  // the last two hold eight copies
  ScoreRule rule;
  const float* sinks;  // [num_q_heads], a score without a value; nullptr: none
  ScoreGrid dropout;   // bits of bytes, key_stride apart: 0 takes a key's weight out of the result, not out of the sum
  DropoutSeed seed;    // instead of the bits
  float keep_scale;    // results are multiplied by it
  const RopeAngles* rope;  // queries and keys are rotated while they are packed (flash_tiles); nullptr: not
  const void* positions;   // i32 | i64, of the sequence's keys; nullptr: 0, 1, ...
  std::int64_t position_stride;
  DType position_dtype;
  RotatedKeys rotated;          // of `rope`
  CodeValues k_codes, v_codes;  // of s8 keys and values
  float* partials;  // rows of partial_stride floats: o[value_dim], then at partial_stride - 2 the maximum and the sum
  std::int64_t q_row_stride, q_head_stride;
  std::int64_t k_row_stride, k_head_stride, k_page_stride;
  std::int64_t v_row_stride, v_head_stride, v_page_stride;
  std::int64_t out_row_stride, out_head_stride;
  std::int64_t partial_stride;
  std::int64_t page_size;          // keys that lie row_stride apart before the next page
  int head_dim, value_dim, group;  // group: query heads of one key head
  int key_tile;
  float score_scale;  // |softmax_scale| log2(e): the kernels work in powers of two
  bool negate_q;      // softmax_scale < 0
  DType q_dtype, kv_dtype, out_dtype;
};

/// Offsets in elements. The sequence's rows are numbered query by query: row = query * group + head in group.
struct AttentionSequence {
  std::int64_t q_offset, k_offset, v_offset, out_offset, lse_offset, max_offset, sum_offset;
  std::int64_t bias_offset, visible_offset, positions_offset, dropout_offset;
  std::int64_t code_page, code_row;  // contiguous keys: batch, and row of key 0
  std::int64_t visible_first_key;    // key of column 0 of the rule's `visible`; those before it are visible
  const std::int32_t* pages;         // nullptr: contiguous
  std::int64_t q_len, kv_len;
  std::int64_t first_position;             // key position at which query 0 stands
  std::int64_t window_left, window_right;  // keys seen before and after a query's own position; may be negative
  std::int64_t prefix_len;                 // keys that every query sees
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
/// Where the sums of a row go; nullptr: not wanted.
struct SoftmaxPlaces {
  float *lse, *max, *sum;
};
__attribute__((always_inline)) inline float* row_output(const RowOutput& rows, std::int64_t offset,
                                                        RowPlace place) noexcept {
  if (!rows.data) return nullptr;
  return rows.data + offset + place.query * rows.row_stride + place.head * rows.head_stride;
}
__attribute__((always_inline)) inline SoftmaxPlaces softmax_places(const AttentionArgs& args,
                                                                   const AttentionSequence& sequence,
                                                                   RowPlace place) noexcept {
  return {row_output(args.lse, sequence.lse_offset, place), row_output(args.softmax_max, sequence.max_offset, place),
          row_output(args.softmax_sum, sequence.sum_offset, place)};
}

struct KeyRange {
  std::int64_t first, last;
};
/// Keys that `query` sees of [first, last), by the mask's rules. Both ends never fall from one query to the next, also
/// where the range is empty.
__attribute__((always_inline)) inline KeyRange keys_seen(const AttentionSequence& sequence, std::int64_t query,
                                                         std::int64_t first, std::int64_t last) noexcept {
  const std::int64_t position = query + sequence.first_position;
  std::int64_t begin = first, end = last;
  if (position - first > sequence.window_left) begin = position - sequence.window_left;
  if (last - 1 - position > sequence.window_right) end = position + sequence.window_right + 1;
  if (end < sequence.prefix_len) end = sequence.prefix_len < last ? sequence.prefix_len : last;
  if (end < first) end = first;
  return {begin < end ? begin : end, end};
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

/// A row's result over part of the keys: o times o_scale = sum of w v and l = sum of w, with weights w relative to the
/// maximum m.
struct AttentionPart {
  const void* o;  // nullptr: zeros
  DType o_dtype;
  float m, l, o_scale;
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
  SoftmaxPlaces softmax;
  float scale;  // of out
};

/// The one way in which partial results become one. Parts with l = 0 are not read; none left: out 0, lse -inf.
/// `weights`: scratch for num_parts floats.
using MergeRowFn = void(const AttentionPart* parts, int num_parts, AttentionUnits units, const MergedRow& row,
                        float* weights) noexcept;
OPS_TRANSFORMER_KERNEL(merge_attention_row, MergeRowFn, generic, avx2, avx512, avx512_bf16)

}  // namespace ops_transformer
