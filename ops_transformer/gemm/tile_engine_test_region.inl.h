// SPDX-License-Identifier: Apache-2.0
// One level's region of tile_engine_test.cc, which defines OPS_TRANSFORMER_ISA before each inclusion.
#include "ops_transformer/simd/begin.h"
namespace ops_transformer::OPS_TRANSFORMER_ISA {
namespace {
#include "ops_transformer/gemm/tile_engine.inl.h"

template <class Tile>
void run_tile(const TileCall& call) noexcept {
  const auto start = static_cast<TileStart>(call.start);
  const PanelOfB b{call.b, call.b_step_bytes};
  if constexpr (Tile::kStepsOfB == 1) {  // nobody reads A transposed with the widened tile
    if (call.a_transposed) {
      multiply_any_tile<Tile>(call.rows, call.vectors, ColumnsOfA{call.a, call.a_stride_bytes}, b, call.num_steps,
                              call.c, call.c_stride, start, call.lane_scale);
      return;
    }
  }
  multiply_any_tile<Tile>(call.rows, call.vectors, RowsOfA{call.a, call.a_stride_bytes}, b, call.num_steps, call.c,
                          call.c_stride, start, call.lane_scale);
}

void run_level(TileKind kind, const TileCall& call) noexcept {
  switch (kind) {
    case TileKind::f32:
      return run_tile<F32Tile>(call);
    case TileKind::bf16_widened:
      return run_tile<Bf16WidenedTile>(call);
    case TileKind::bf16:
#if defined(OPS_TRANSFORMER_ISA_avx512_bf16)
      return run_tile<Bf16Tile>(call);
#else
      return;
#endif
  }
}

constexpr LevelUnderTest level_under_test{kLanes, kTileRows, kTileVectors, kHasBf16Dot, run_level};

}  // namespace
}  // namespace ops_transformer::OPS_TRANSFORMER_ISA
#include "ops_transformer/simd/end.h"
#undef OPS_TRANSFORMER_SIMD_512
#undef OPS_TRANSFORMER_SIMD_256
#undef OPS_TRANSFORMER_KEEP_IN_REGISTER
