// SPDX-License-Identifier: Apache-2.0
// One level's region of gemm_bench.cc: what its registers and its memory ports can do.
#include "ops_transformer/simd/begin.h"
namespace ops_transformer::OPS_TRANSFORMER_ISA {
namespace {
#include "ops_transformer/gemm/tile_engine.inl.h"

// The strides are zero, so that the operands stay in L1, but the compiler can't know.
template <class Tile>
OPS_TRANSFORMER_INLINE double tile_flops(const PeakCall& call) noexcept {
  multiply_tile<Tile, kTileRows, kTileVectors>(RowsOfA{call.a, call.zero}, PanelOfB{call.b, call.zero}, call.steps,
                                               call.c, kTileVectors * kLanes, TileStart::zero);
  return 2.0 * Tile::kInputsPerStep * double(call.steps) * kTileRows * kTileVectors * kLanes;
}

double peak_f32(const PeakCall& call) noexcept { return tile_flops<F32Tile>(call); }
double peak_bf16(const PeakCall& call) noexcept {
#if defined(OPS_TRANSFORMER_ISA_avx512_bf16)
  return tile_flops<Bf16Tile>(call);
#else
  return tile_flops<F32Tile>(call);
#endif
}

// Sum of floats by eight chains.
float read_all(const float* p, std::int64_t n) noexcept {
  F32 total[8] = {};
  for (std::int64_t i = 0; i + 8 * kLanes <= n; i += 8 * kLanes) {
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) total[j] += load(p + i + j * kLanes);
  }
  F32 all = total[0];
  for (int j = 1; j < 8; ++j) all += total[j];
  return sum(all);
}

constexpr LevelLimits limits{peak_f32, peak_bf16, read_all};

}  // namespace
}  // namespace ops_transformer::OPS_TRANSFORMER_ISA
#include "ops_transformer/simd/end.h"
#undef OPS_TRANSFORMER_SIMD_512
#undef OPS_TRANSFORMER_SIMD_256
#undef OPS_TRANSFORMER_KEEP_IN_REGISTER
