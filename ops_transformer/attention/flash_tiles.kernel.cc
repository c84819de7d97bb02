// SPDX-License-Identifier: Apache-2.0
// levels: generic avx2 avx512 avx512_bf16
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

// Everything is converted to f32 when it is packed.
struct F32Format {
  using Tile = F32Tile;
  static constexpr int kKeysPerStep = 1;
  static constexpr std::int32_t kSignBits = std::int32_t(0x80000000);
  static constexpr std::int64_t round_up(std::int64_t keys) noexcept { return keys; }

  OPS_TRANSFORMER_INLINE static int lanes_left(std::int64_t dim, std::int64_t unit) noexcept {
    return int(dim - unit < kLanes ? dim - unit : kLanes);
  }
  OPS_TRANSFORMER_INLINE static F32 load_query_units(const AttentionArgs& args, std::int64_t offset,
                                                     std::int64_t unit) noexcept {
    return load_query(args, offset + unit, lanes_left(args.head_dim, unit));
  }
  OPS_TRANSFORMER_INLINE static F32 load_units(const void* p, DType dtype, std::int64_t offset, std::int64_t unit,
                                               std::int64_t dim) noexcept {
    return load_any(p, dtype, offset + unit, lanes_left(dim, unit));
  }

  // True where a value is infinite or NaN; with `clean` those become 0.
  static bool pack_values(const AttentionArgs& args, const FlashTilesLayout& layout, const Workspace& work,
                          const KeyTile& tile, bool clean) noexcept {
    I32 nonfinite{};
    float* row = reinterpret_cast<float*>(work.v);
    for (std::int64_t key = 0; key < tile.num_keys; ++key, row += layout.v_stride) {
      for (std::int64_t d = 0; d < args.value_dim; d += kLanes) {
        const F32 value = load_value(args, tile, key, d, lanes_left(args.value_dim, d));
        const I32 wrong = ((I32)value & 0x7fffffff) >= splat_int(0x7f800000);
        nonfinite |= wrong;
        store(row + d, clean ? (F32)((I32)value & ~wrong) : value);
      }
    }
    return any_lane(nonfinite);
  }

  // Scores become weights 2^(score * scale - m) in place; gives sum plus the weights, even and odd keys in two chains.
  OPS_TRANSFORMER_INLINE static F32 weigh(float* scores, std::int64_t begin, std::int64_t end, F32 scale, F32 m,
                                          F32 sum) noexcept {
    F32 odd{};
    std::int64_t key = begin;
    if (key % 2 == 1 && key < end) odd += weigh_one(scores, key++, scale, m);
    for (; key + 2 <= end; key += 2) {
      sum += weigh_one(scores, key, scale, m);
      odd += weigh_one(scores, key + 1, scale, m);
    }
    if (key < end) sum += weigh_one(scores, key, scale, m);
    return sum + odd;
  }
  OPS_TRANSFORMER_INLINE static F32 weigh_one(float* scores, std::int64_t key, F32 scale, F32 m) noexcept {
    const F32 weight = exp2(fma(load(scores + key * kBlockLanes), scale, -m));
    store(scores + key * kBlockLanes, weight);
    return weight;
  }
  OPS_TRANSFORMER_INLINE static void keep(float* scores, std::int64_t key, I32 lanes) noexcept {
    store(scores + key * kBlockLanes, (F32)((I32)load(scores + key * kBlockLanes) & lanes));
  }
  OPS_TRANSFORMER_INLINE static F32 weight(const float* scores, std::int64_t key) noexcept {
    return load(scores + key * kBlockLanes);
  }
};

}  // namespace

void flash_tiles(const AttentionArgs& args, const AttentionSequence& sequence, const AttentionItem& item,
                 std::byte* scratch) noexcept {
  attend<F32Format>(args, sequence, item, scratch);
}

}  // namespace ops_transformer::OPS_TRANSFORMER_ISA
#include "ops_transformer/simd/end.h"
