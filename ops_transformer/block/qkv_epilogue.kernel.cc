// SPDX-License-Identifier: Apache-2.0
// levels: generic avx2 avx512 avx512_bf16
#include "ops_transformer/block/qkv_epilogue_kernel.h"

#include "ops_transformer/simd/begin.h"

namespace ops_transformer::OPS_TRANSFORMER_ISA {
namespace {

#include "ops_transformer/posembedding/rope.inl.h"

#include "ops_transformer/simd/convert.inl.h"

// The first element of a token's head; -1: it is not kept.
OPS_TRANSFORMER_INLINE std::int64_t place(const QkvEpilogueArgs& args, const HeadTarget& target, bool cached,
                                          std::int64_t token, std::int64_t head) noexcept {
  if (!cached || !args.slots) return token * target.slot_stride + head * target.head_stride;
  const std::int64_t slot = args.slots[token];
  if (slot < 0) return -1;
  return slot / args.page_size * target.page_stride + slot % args.page_size * target.slot_stride +
         head * target.head_stride;
}

// Tiles t and t + 1: 16 pairs of one head.
void finish_pair(const QkvEpilogueArgs& args, const float* sums, std::int64_t t, std::int64_t token) noexcept {
  const std::int64_t tiles_per_head = args.head_dim / kTileOutputs;
  std::int64_t head = t / tiles_per_head;
  const std::int64_t pair = t % tiles_per_head / 2 * kTileOutputs;
  const bool is_key = head >= args.num_q_heads;
  const HeadTarget& target = is_key ? args.k : args.q;
  if (is_key) head -= args.num_q_heads;
  const std::int64_t at = place(args, target, is_key, token, head);
  if (at < 0) return;
  const float *cosines = nullptr, *sines = nullptr;
  std::int64_t position = 0;
  if (args.angles.half) {
    position = position_at(args.positions, args.position_dtype, token * args.position_stride);
    if (position >= 0 && position < args.angles.table_len) {
      cosines = args.angles.cosines + position * args.angles.row_stride + pair;
      sines = args.angles.sines + position * args.angles.row_stride + pair;
    }
  }
  for (int i = 0; i < kTileOutputs; i += kLanes) {
    F32 first = load(sums + i), second = load(sums + kTileOutputs + i);
    if (args.angles.half) {
      F32 cosine, sine;
      if (cosines) {
        cosine = load(cosines + i);
        sine = load(sines + i);
      } else {
        computed_rotation(args.angles, position, pair + i, kLanes, cosine, sine);
      }
      rotate(first, second, cosine, sine);
    }
    if (args.interleaved) {
      store_any(target.data, target.dtype, at + 2 * (pair + i), interleave_low(first, second), kLanes);
      store_any(target.data, target.dtype, at + 2 * (pair + i) + kLanes, interleave_high(first, second), kLanes);
    } else {
      store_any(target.data, target.dtype, at + pair + i, first, kLanes);
      store_any(target.data, target.dtype, at + args.head_dim / 2 + pair + i, second, kLanes);
    }
  }
}

// Outputs [first, first + 16) in their own order, of which a head may end anywhere.
void finish_tile(const QkvEpilogueArgs& args, const float* sums, std::int64_t first, std::int64_t token) noexcept {
  const std::int64_t end_of_q = args.num_q_heads * args.head_dim,
                     end_of_k = end_of_q + args.num_kv_heads * args.head_dim;
  for (int i = 0; i < kTileOutputs && first + i < args.num_outputs;) {
    const std::int64_t output = first + i;
    const bool is_query = output < end_of_q, is_value = output >= end_of_k;
    const std::int64_t begin = is_query   ? 0
                               : is_value ? end_of_k
                                          : end_of_q,
                       dim = is_value ? args.value_dim : args.head_dim;
    const HeadTarget& target = is_query ? args.q : is_value ? args.v : args.k;
    const std::int64_t head = (output - begin) / dim, element = (output - begin) % dim;
    const std::int64_t wanted = dim - element, there = kTileOutputs - i;
    int lanes = int(wanted < there ? wanted : there);
    if (lanes > kLanes) lanes = kLanes;
    const F32 y = load_lanes(sums + i, lanes);
    const std::int64_t at = place(args, target, !is_query, token, head);
    if (at >= 0) store_any(target.data, target.dtype, at + element, y, lanes);
    i += lanes;
  }
}

}  // namespace

void qkv_epilogue(const EpilogueArgs& base, const FinishedSums& tile) noexcept {
  const auto& args = static_cast<const QkvEpilogueArgs&>(base);
  const std::int64_t paired_tiles =
      args.paired ? (args.num_q_heads + args.num_kv_heads) * args.head_dim / kTileOutputs : 0;
  for (int r = 0; r < tile.num_rows; ++r) {
    const std::int64_t token = tile.first_row + r;
    const float* sums = tile.sums + r * tile.row_stride;
    for (int i = 0; i < tile.num_tiles;) {
      const std::int64_t t = tile.first_tile + i;
      if (t < paired_tiles) {
        finish_pair(args, sums + i * kTileOutputs, t, token);
        i += 2;
      } else {
        finish_tile(args, sums + i * kTileOutputs, t * kTileOutputs, token);
        ++i;
      }
    }
  }
}

}  // namespace ops_transformer::OPS_TRANSFORMER_ISA
#include "ops_transformer/simd/end.h"
