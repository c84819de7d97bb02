// SPDX-License-Identifier: Apache-2.0
// The tile engine at every level, by way of a region for each level in this one file.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "ops_transformer/base/isa.h"
#include "ops_transformer/base/memory.h"
#include "tests/support/guarded_buffer.h"
#include "tests/support/random.h"
#include "tests/support/tolerance.h"

namespace ops_transformer {
namespace {

enum class TileKind { f32, bf16_widened, bf16 };

struct TileCall {
  int rows, vectors;
  bool a_transposed;
  const void* a;
  std::int64_t a_stride_bytes;
  const void* b;
  std::int64_t b_step_bytes;
  std::int64_t num_steps;
  float* c;
  std::int64_t c_stride;
  int start;  // TileStart
  const float* lane_scale;
};

struct LevelUnderTest {
  int lanes, tile_rows, tile_vectors;
  bool has_bf16_dot;
  void (*run)(TileKind, const TileCall&) noexcept;
};

}  // namespace
}  // namespace ops_transformer

#define OPS_TRANSFORMER_ISA generic
#define OPS_TRANSFORMER_ISA_generic 1
#include "ops_transformer/gemm/tile_engine_test_region.inl.h"
#undef OPS_TRANSFORMER_ISA
#undef OPS_TRANSFORMER_ISA_generic
#if defined(__x86_64__)
  #define OPS_TRANSFORMER_ISA avx2
  #define OPS_TRANSFORMER_ISA_avx2 1
  #include "ops_transformer/gemm/tile_engine_test_region.inl.h"
  #undef OPS_TRANSFORMER_ISA
  #undef OPS_TRANSFORMER_ISA_avx2
  #define OPS_TRANSFORMER_ISA avx512
  #define OPS_TRANSFORMER_ISA_avx512 1
  #include "ops_transformer/gemm/tile_engine_test_region.inl.h"
  #undef OPS_TRANSFORMER_ISA
  #undef OPS_TRANSFORMER_ISA_avx512
  #define OPS_TRANSFORMER_ISA avx512_bf16
  #define OPS_TRANSFORMER_ISA_avx512_bf16 1
  #include "ops_transformer/gemm/tile_engine_test_region.inl.h"
  #undef OPS_TRANSFORMER_ISA
  #undef OPS_TRANSFORMER_ISA_avx512_bf16
#endif

namespace ops_transformer {
namespace {

const LevelUnderTest* level_of(Isa isa) {
  switch (isa) {
    case Isa::generic:
      return &generic::level_under_test;
#if defined(__x86_64__)
    case Isa::avx2:
      return &avx2::level_under_test;
    case Isa::avx512:
      return &avx512::level_under_test;
    case Isa::avx512_bf16:
      return &avx512_bf16::level_under_test;
#endif
    default:
      return nullptr;
  }
}

// One tile with random data against float64. A ends before a guard page; B's step is one vector wider than the tile.
void check_tile(const LevelUnderTest& level, TileKind kind, int rows, int vectors, std::int64_t k, bool a_transposed,
                int start) {
  SCOPED_TRACE(testing::Message() << "kind " << int(kind) << " rows " << rows << " vectors " << vectors << " k " << k
                                  << " transposed " << a_transposed << " start " << start);
  test::Random random(99);
  const bool paired_b = kind != TileKind::f32, paired_a = kind == TileKind::bf16;
  const std::int64_t steps = paired_a ? (k + 1) / 2 : k, steps_b = paired_b ? (k + 1) / 2 : k;
  const int columns = vectors * level.lanes, width = columns + level.lanes;
  std::vector<double> a(std::size_t(rows * k)), b(std::size_t(k * columns));
  const std::int64_t a_stride = a_transposed ? rows + 1 : steps + 3;
  const std::int64_t a_units = steps == 0     ? 0
                               : a_transposed ? (steps - 1) * a_stride + rows
                                              : (rows - 1) * a_stride + steps;
  test::GuardedBuffer<std::uint32_t> a_units_data{std::size_t(a_units)};
  Buffer b_data(std::size_t(steps_b * width) * 4 + 64);
  std::memset(b_data.data(), 0xff, b_data.size());
  const auto unit_of_a = [&](int r, std::int64_t s) {
    return std::size_t(a_transposed ? s * a_stride + r : r * a_stride + s);
  };
  if (paired_a) {
    for (std::int64_t s = 0; s < steps; ++s) {
      for (int r = 0; r < rows; ++r) a_units_data[unit_of_a(r, s)] = 0;
    }
  }
  for (int r = 0; r < rows; ++r) {
    for (std::int64_t i = 0; i < k; ++i) {
      const float x = random.normal();
      if (paired_a) {
        const BFloat16 h = to_bfloat16(x);
        a_units_data[unit_of_a(r, i / 2)] |= std::uint32_t(h.bits) << (i % 2 * 16);
        a[std::size_t(r * k + i)] = to_float(h);
      } else {
        std::memcpy(&a_units_data[unit_of_a(r, i)], &x, 4);
        a[std::size_t(r * k + i)] = x;
      }
    }
  }
  for (std::int64_t i = 0; i < k; ++i) {
    for (int j = 0; j < columns; ++j) {
      const float x = random.normal();
      if (paired_b) {
        const BFloat16 h = to_bfloat16(x);
        auto* unit = b_data.as<std::uint16_t>() + (i / 2 * width + j) * 2;
        unit[i % 2] = h.bits;
        if (i % 2 == 0) unit[1] = 0;
        b[std::size_t(i * columns + j)] = to_float(h);
      } else {
        b_data.as<float>()[i * width + j] = x;
        b[std::size_t(i * columns + j)] = x;
      }
    }
  }
  const std::int64_t c_stride = columns + 5;
  test::GuardedBuffer<float> c(std::size_t((rows - 1) * c_stride + columns));
  std::vector<float> scale(std::size_t(columns), 1.0f);
  std::vector<float> before(c.size());
  if (start != 0) {
    for (int r = 0; r < rows; ++r) {
      for (int j = 0; j < columns; ++j) c[std::size_t(r * c_stride + j)] = random.normal();
    }
  }
  if (start == 2) {
    for (float& s : scale) s = random.uniform(0.0f, 1.0f);
  }
  for (std::size_t i = 0; i < c.size(); ++i) before[i] = c[i];
  level.run(kind, {rows, vectors, a_transposed, a_units_data.data(), a_stride * 4, b_data.data(), width * 4, steps,
                   c.data(), c_stride, start, scale.data()});
  for (int r = 0; r < rows; ++r) {
    for (int j = 0; j < c_stride && std::size_t(r * c_stride + j) < c.size(); ++j) {
      const std::size_t at = std::size_t(r * c_stride + j);
      if (j >= columns) {
        ASSERT_TRUE(std::isnan(c[at])) << "wrote past column " << columns;
        continue;
      }
      double expected = start == 0 ? 0.0 : double(before[at]) * scale[std::size_t(j)], magnitude = std::abs(expected);
      for (std::int64_t i = 0; i < k; ++i) {
        const double product = a[std::size_t(r * k + i)] * b[std::size_t(i * columns + j)];
        expected += product;
        magnitude += std::abs(product);
      }
      ASSERT_NEAR(c[at], expected, test::tolerance(double(k + 2), magnitude, expected, DType::f32))
          << "row " << r << " column " << j;
    }
  }
}

TEST(TileEngine, EveryShapeAtEveryLevel) {
  for (Isa isa : supported_isas()) {
    const LevelUnderTest* level = level_of(isa);
    if (!level) continue;
    SCOPED_TRACE(std::string(isa_name(isa)));
    for (TileKind kind : {TileKind::f32, TileKind::bf16_widened, TileKind::bf16}) {
      if (kind == TileKind::bf16 && !level->has_bf16_dot) continue;
      for (int rows = 1; rows <= level->tile_rows; ++rows) {
        for (int vectors = 1; vectors <= level->tile_vectors; ++vectors) {
          for (std::int64_t k : {0, 1, 2, 7, 64, 129}) {
            const bool may_transpose = kind != TileKind::bf16_widened;
            check_tile(*level, kind, rows, vectors, k, may_transpose && k % 2 == 1, int(k % 3));
            check_tile(*level, kind, rows, vectors, k, may_transpose && k % 2 == 0, int((k + 1) % 3));
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace ops_transformer
