// SPDX-License-Identifier: Apache-2.0
// The tile engine: C [rows][vectors of kLanes columns] = start + A B with the sums in registers. One micro-kernel for
// every contraction of the library; what differs is data (where A and B lie, how C starts) and the Tile tag:
//
//   tag               A, 4 bytes a step       B, one vector a step              step       sum
//   F32Tile           f32                     f32                               one k      fma
//   Bf16Tile          pair of bf16            pairs of bf16, low half = even k  two k      vdpbf16ps (kHasBf16Dot)
//   Bf16WidenedTile   f32                     pairs of bf16, as above           one k      fma
//   F16WidenedTile    f32                     f16 (half a vector)               one k      fma
//
// Each sum is one chain in the order of k, so splitting k into several calls (add) or changing the tile's shape leaves
// the bits as they are. vdpbf16ps takes subnormals as zero. Included inside a level's region, after simd/begin.h.

#if defined(OPS_TRANSFORMER_SIMD_512)
inline constexpr int kTileRows = 6, kTileVectors = 4;  // 24 sums + 4 of B + 1 of A of 32 registers
#elif defined(OPS_TRANSFORMER_SIMD_256)
inline constexpr int kTileRows = 6, kTileVectors = 2;  // 12 + 2 + 1 of 16
#else
inline constexpr int kTileRows = 4, kTileVectors = 2;  // 8 + 2 + 1, and one for the product: no FMA here
#endif

// A as it lies: unit (row, step) at data + row * row_bytes + 4 * step.
struct RowsOfA {
  const void* data;
  std::int64_t row_bytes;
  OPS_TRANSFORMER_INLINE const std::byte* at(int row, std::int64_t step) const noexcept {
    return static_cast<const std::byte*>(data) + row * row_bytes + 4 * step;
  }
};
// A transposed: unit (row, step) at data + step * step_bytes + 4 * row.
struct ColumnsOfA {
  const void* data;
  std::int64_t step_bytes;
  OPS_TRANSFORMER_INLINE const std::byte* at(int row, std::int64_t step) const noexcept {
    return static_cast<const std::byte*>(data) + step * step_bytes + 4 * row;
  }
};
// B packed: the vectors of a step side by side. step_bytes may be wider than the tile, to leave vectors out. Keep data
// and step_bytes multiples of kVectorBytes: a load across two cache lines costs half the speed.
struct PanelOfB {
  const void* data;
  std::int64_t step_bytes;
  OPS_TRANSFORMER_INLINE const std::byte* at(std::int64_t step, int vector) const noexcept {
    return static_cast<const std::byte*>(data) + step * step_bytes + vector * kVectorBytes;
  }
};

enum class TileStart {
  zero,     // C is only written
  add,      // C += A B
  rescale,  // C = C * lane_scale[column] + A B
};

OPS_TRANSFORMER_INLINE F32 broadcast_f32(const std::byte* p) noexcept {
  float x;
  __builtin_memcpy(&x, p, sizeof x);
  return splat(x);
}
OPS_TRANSFORMER_INLINE F32 load_f32(const std::byte* p) noexcept {
  F32 v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}

// The value must be in a register from here on. Without it gcc 12 folds loads of B into the multiplications of tiles
// with few rows, one load for each: 214-411 instead of 544 GFLOP/s at 4 x 4 (Zen 5, 2 threads, Nov 2026).
#if defined(__x86_64__) && !defined(__clang__)
  #define OPS_TRANSFORMER_KEEP_IN_REGISTER(v) __asm__("" : "+v"(v))
#else
  #define OPS_TRANSFORMER_KEEP_IN_REGISTER(v) static_cast<void>(v)
#endif

// kInputsPerStep: k of one step. kStepsOfB: steps of A that one vector of B serves.
struct F32Tile {
  static constexpr int kInputsPerStep = 1, kStepsOfB = 1, kVectorBytesOfB = kVectorBytes;
  OPS_TRANSFORMER_INLINE static F32 load_a(const std::byte* p) noexcept { return broadcast_f32(p); }
  template <int Phase>
  OPS_TRANSFORMER_INLINE static F32 load_b(const std::byte* p) noexcept {
    return load_f32(p);
  }
  OPS_TRANSFORMER_INLINE static F32 multiply(F32 a, F32 b, F32 sum) noexcept { return fma(a, b, sum); }
};

#if defined(OPS_TRANSFORMER_ISA_avx512_bf16)
struct Bf16Tile : F32Tile {
  static constexpr int kInputsPerStep = 2;
  OPS_TRANSFORMER_INLINE static F32 multiply(F32 a, F32 b, F32 sum) noexcept {
    return (F32)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
  }
};
#endif

struct Bf16WidenedTile : F32Tile {
  static constexpr int kStepsOfB = 2;
  template <int Phase>
  OPS_TRANSFORMER_INLINE static F32 load_b(const std::byte* p) noexcept {
    I32 pairs = (I32)load_f32(p);
#if defined(OPS_TRANSFORMER_SIMD_256)
    // Two shifts, since the mask would take a register that 16 don't have: 148 -> 215 GFLOP/s at avx2 (Zen 4, 2
    // threads, Nov 2026).
    if constexpr (Phase == 1) {
      pairs >>= 16;
      OPS_TRANSFORMER_KEEP_IN_REGISTER(pairs);
      return (F32)(pairs << 16);
    }
#endif
    return (F32)(Phase == 0 ? pairs << 16 : pairs & (std::int32_t)0xffff0000);
  }
};

struct F16WidenedTile : F32Tile {
  static constexpr int kVectorBytesOfB = kVectorBytes / 2;
  template <int Phase>
  OPS_TRANSFORMER_INLINE static F32 load_b(const std::byte* p) noexcept {
    return load(reinterpret_cast<const Float16*>(p));
  }
};

template <class Tile, int Phase, int Rows, int Vectors, class A, class B>
OPS_TRANSFORMER_INLINE void multiply_step(const A& a, const B& b, std::int64_t step,
                                          F32 (&sum)[Rows][Vectors]) noexcept {
  F32 column[Vectors];
#pragma GCC unroll 4
  for (int v = 0; v < Vectors; ++v) {
    column[v] = Tile::template load_b<Phase>(b.at(step / Tile::kStepsOfB, v));
    OPS_TRANSFORMER_KEEP_IN_REGISTER(column[v]);
  }
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
    const F32 row = Tile::load_a(a.at(r, step));
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) sum[r][v] = Tile::multiply(row, column[v], sum[r][v]);
  }
}

/// c [Rows][Vectors * kLanes] f32, rows row_stride floats apart. lane_scale [Vectors * kLanes] is read for rescale
/// only.
template <class Tile, int Rows, int Vectors, class A, class B>
__attribute__((noinline)) void multiply_tile(A a, B b, std::int64_t num_steps, float* c, std::int64_t row_stride,
                                             TileStart start, const float* lane_scale = nullptr) noexcept {
  static_assert(Rows <= kTileRows && Vectors <= kTileVectors);
  F32 sum[Rows][Vectors];
  if (start == TileStart::zero) {
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < Vectors; ++v) sum[r][v] = F32{};
    }
  } else {
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < Vectors; ++v) sum[r][v] = load(c + r * row_stride + v * kLanes);
    }
    if (start == TileStart::rescale) {
#pragma GCC unroll 4
      for (int v = 0; v < Vectors; ++v) {
        const F32 scale = load(lane_scale + v * kLanes);
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r) sum[r][v] *= scale;
      }
    }
  }
  std::int64_t step = 0;
  for (; step + Tile::kStepsOfB <= num_steps; step += Tile::kStepsOfB) {
    multiply_step<Tile, 0>(a, b, step, sum);
    if constexpr (Tile::kStepsOfB == 2) {
      multiply_step<Tile, 1>(a, b, step + 1, sum);
    }
  }
  if constexpr (Tile::kStepsOfB == 2) {
    if (step < num_steps) multiply_step<Tile, 0>(a, b, step, sum);
  }
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) store(c + r * row_stride + v * kLanes, sum[r][v]);
  }
}

template <class Tile, int Rows, class A, class B>
OPS_TRANSFORMER_INLINE void multiply_tile_vectors(int vectors, const A& a, const B& b, std::int64_t num_steps, float* c,
                                                  std::int64_t row_stride, TileStart start,
                                                  const float* lane_scale) noexcept {
  if (vectors == 1) return multiply_tile<Tile, Rows, 1>(a, b, num_steps, c, row_stride, start, lane_scale);
  if constexpr (kTileVectors == 4) {
    if (vectors == 4) return multiply_tile<Tile, Rows, 4>(a, b, num_steps, c, row_stride, start, lane_scale);
    if (vectors == 3) return multiply_tile<Tile, Rows, 3>(a, b, num_steps, c, row_stride, start, lane_scale);
  }
  multiply_tile<Tile, Rows, 2>(a, b, num_steps, c, row_stride, start, lane_scale);
}

/// The same for a shape known at run time: rows in 1…kTileRows, vectors in 1…kTileVectors.
template <class Tile, class A, class B>
[[maybe_unused]] void multiply_any_tile(int rows, int vectors, const A& a, const B& b, std::int64_t num_steps, float* c,
                                        std::int64_t row_stride, TileStart start,
                                        const float* lane_scale = nullptr) noexcept {
  switch (rows) {
    case 1:
      return multiply_tile_vectors<Tile, 1>(vectors, a, b, num_steps, c, row_stride, start, lane_scale);
    case 2:
      return multiply_tile_vectors<Tile, 2>(vectors, a, b, num_steps, c, row_stride, start, lane_scale);
    case 3:
      return multiply_tile_vectors<Tile, 3>(vectors, a, b, num_steps, c, row_stride, start, lane_scale);
    case 4:
      return multiply_tile_vectors<Tile, 4>(vectors, a, b, num_steps, c, row_stride, start, lane_scale);
    default:
      if constexpr (kTileRows == 6) {
        if (rows == 5)
          return multiply_tile_vectors<Tile, 5>(vectors, a, b, num_steps, c, row_stride, start, lane_scale);
        multiply_tile_vectors<Tile, 6>(vectors, a, b, num_steps, c, row_stride, start, lane_scale);
      }
  }
}
