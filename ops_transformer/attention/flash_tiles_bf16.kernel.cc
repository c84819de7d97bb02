// SPDX-License-Identifier: Apache-2.0
// levels: avx512_bf16
#include "ops_transformer/attention/attention_kernel.h"
#include "ops_transformer/attention/flash_tiles_layout.h"

#include "ops_transformer/simd/begin.h"

namespace ops_transformer::OPS_TRANSFORMER_ISA {
namespace {

#include "ops_transformer/attention/attention_state.inl.h"
#include "ops_transformer/attention/lane_shuffle.inl.h"
#include "ops_transformer/gemm/tile_engine.inl.h"
#include "ops_transformer/simd/convert.inl.h"

#include "ops_transformer/attention/attention_rows.inl.h"
#include "ops_transformer/posembedding/rope.inl.h"

#include "ops_transformer/attention/kv_codes.inl.h"
#include "ops_transformer/attention/philox.inl.h"

#include "ops_transformer/attention/score_rule.inl.h"

#include "ops_transformer/attention/lane_rule.inl.h"

#include "ops_transformer/attention/flash_tiles.inl.h"

#include "ops_transformer/attention/bf16_pairs.inl.h"

// Pairs of bf16: along head_dim in queries and keys, along keys in values and weights.
struct Bf16Format {
  using Tile = Bf16Tile;
  static constexpr int kKeysPerStep = 2;
  static constexpr std::int32_t kSignBits = std::int32_t(0x80008000);
  static constexpr std::int64_t round_up(std::int64_t keys) noexcept { return (keys + 1) / 2 * 2; }

  OPS_TRANSFORMER_INLINE static F32 load_query_units(const AttentionArgs& args, std::int64_t offset,
                                                     std::int64_t unit) noexcept {
    return load_units(args.q, args.q_dtype, offset, unit, args.head_dim);
  }
  OPS_TRANSFORMER_INLINE static F32 load_units(const void* p, DType dtype, std::int64_t offset, std::int64_t unit,
                                               std::int64_t dim) noexcept {
    const std::int64_t left = dim - 2 * unit;
    return (F32)load_bf16_pairs(p, dtype, offset + 2 * unit, int(left < 2 * kLanes ? left : 2 * kLanes));
  }

  // Rows of two keys interleaved: unit d of a step holds value d of the even and of the odd key.
  static bool pack_values(const AttentionArgs& args, const FlashTilesLayout& layout, const Workspace& work,
                          const KeyTile& tile, bool clean) noexcept {
    const auto* v = static_cast<const std::uint16_t*>(args.v);
    __mmask32 nonfinite = 0;
    std::int32_t* row = work.v;
    for (std::int64_t key = 0; key < tile.num_keys; key += 2, row += layout.v_stride) {
      const bool paired = key + 1 < tile.num_keys;
      const std::uint16_t *even = v + tile.v_offset[key], *odd = v + tile.v_offset[paired ? key + 1 : key];
      for (std::int64_t d = 0; d < args.value_dim; d += 32) {
        const __mmask32 dims = args.value_dim - d < 32 ? (1u << (args.value_dim - d)) - 1u : ~0u;
        __m512i a = _mm512_maskz_loadu_epi16(dims, even + d);
        __m512i b = _mm512_maskz_loadu_epi16(paired ? dims : 0, odd + d);
        const __mmask32 wrong_a = nonfinite_lanes(a), wrong_b = nonfinite_lanes(b);
        nonfinite |= wrong_a | wrong_b;
        if (clean) {
          a = _mm512_maskz_mov_epi16(~wrong_a, a);
          b = _mm512_maskz_mov_epi16(~wrong_b, b);
        }
        _mm512_store_si512(row + d, interleave_low(a, b));
        _mm512_store_si512(row + d + 16, interleave_high(a, b));
      }
    }
    return nonfinite != 0;
  }
  OPS_TRANSFORMER_INLINE static __mmask32 nonfinite_lanes(__m512i v) noexcept {
    const __m512i exponent = _mm512_set1_epi16(0x7f80);
    return _mm512_cmpeq_epi16_mask(_mm512_and_si512(v, exponent), exponent);
  }

  // Scores of two keys become a row of weight pairs, rounded to bf16; the sum adds what was stored.
  OPS_TRANSFORMER_INLINE static F32 weigh(float* scores, std::int64_t begin, std::int64_t end, F32 scale, F32 m,
                                          F32 sum) noexcept {
    F32 odd{};
    for (std::int64_t key = begin; key < end; key += 2) {
      const F32 low = exp2(fma(load(scores + key * kBlockLanes), scale, -m));
      const F32 high = exp2(fma(load(scores + (key + 1) * kBlockLanes), scale, -m));
      const I32 pairs = round_to_pairs(low, high);
      store(scores + key / 2 * kBlockLanes, (F32)pairs);
      sum += low_of(pairs);
      odd += high_of(pairs);
    }
    return sum + odd;
  }
  OPS_TRANSFORMER_INLINE static void keep(float* scores, std::int64_t key, I32 lanes) noexcept {
    const I32 other = splat_int(std::int32_t(key % 2 ? 0x0000ffff : 0xffff0000));
    float* pairs = scores + key / 2 * kBlockLanes;
    store(pairs, (F32)((I32)load(pairs) & (lanes | other)));
  }
  OPS_TRANSFORMER_INLINE static F32 weight(const float* scores, std::int64_t key) noexcept {
    const I32 pairs = (I32)load(scores + key / 2 * kBlockLanes);
    return key % 2 ? high_of(pairs) : low_of(pairs);
  }
};

}  // namespace

void flash_tiles_bf16(const AttentionArgs& args, const AttentionSequence& sequence, const AttentionItem& item,
                      std::byte* scratch) noexcept {
  attend<Bf16Format>(args, sequence, item, scratch);
}

}  // namespace ops_transformer::OPS_TRANSFORMER_ISA
#include "ops_transformer/simd/end.h"
