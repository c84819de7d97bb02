// SPDX-License-Identifier: Apache-2.0
// Plans, packing and refusals.
#include "ops_transformer/gemm/matmul.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "ops_transformer/gemm/linear.h"
#include "tests/support/message_of.h"
#include "tests/support/random.h"

namespace ops_transformer {
namespace {

using test::message_of;

// A plan covers every row and every output, keeps pairs of tiles together and holds its promises on any machine.
TEST(MatmulPlan, CoversTheProblemOnEveryDevice) {
  for (int i = 0; i < kNumIsas; ++i) {
    DeviceSpec device = device_spec_of(static_cast<Isa>(i));
    for (std::size_t l2 : {std::size_t{256} << 10, std::size_t{2} << 20}) {
      device.l2_bytes = l2;
      for (int threads : {1, 2, 7, 64}) {
        for (DType weights : {DType::f32, DType::bf16, DType::f16}) {
          for (std::int64_t rows : {1, 16, 17, 512, 100000}) {
            for (std::int64_t tiles : {1, 2, 9, 36, 3072}) {
              for (std::int64_t inputs : {0, 1, 576, 4097, 100000}) {
                const MatmulPlan plan =
                    plan_matmul({weights, DType::f32, Arithmetic::fast, rows, inputs, tiles}, device, threads);
                SCOPED_TRACE(describe(plan));
                ASSERT_GE(plan.num_row_items * plan.rows_per_item, rows);
                ASSERT_LT((plan.num_row_items - 1) * plan.rows_per_item, rows);
                ASSERT_GE(plan.num_tile_items * plan.tiles_per_item, tiles);
                ASSERT_LT((plan.num_tile_items - 1) * plan.tiles_per_item, tiles);
                ASSERT_EQ(plan.tiles_per_item % 2, 0);
                ASSERT_EQ(plan.inputs_per_block % 64, 0);
                ASSERT_LE(plan.rows_per_item, 200);
              }
            }
          }
        }
      }
    }
  }
}

TEST(MatmulPlan, GivesEveryThreadWork) {
  const DeviceSpec device = device_spec_of(Isa::avx512_bf16);
  for (std::int64_t rows : {1, 16, 512}) {
    const MatmulPlan plan = plan_matmul({DType::bf16, DType::f32, Arithmetic::fast, rows, 576, 36}, device, 2);
    EXPECT_GE(plan.num_row_items * plan.num_tile_items, 2) << describe(plan);
  }
}

TEST(PackedWeights, StackedPartsAreOneMatmul) {
  Context context({.num_threads = 2});
  test::Random random(12);
  constexpr std::int64_t kInputs = 37;
  std::vector<float> weights(std::size_t(53 * kInputs)), x(std::size_t(3 * kInputs)), whole(3 * 53), stacked(3 * 53);
  test::fill_normal(weights, random);
  test::fill_normal(x, random);
  const auto part = [&](std::int64_t first, std::int64_t n) {
    return ConstTensorView(weights.data() + first * kInputs, DType::f32, {n, kInputs});
  };
  const ConstTensorView parts[] = {part(0, 16), part(16, 32), part(48, 5)};
  const ConstTensorView input(x.data(), DType::f32, {3, kInputs});
  const auto one = PackedWeights::pack(context, part(0, 53));
  const auto three = PackedWeights::pack(context, parts);
  EXPECT_EQ(three.num_outputs(), 53);
  EXPECT_EQ(three.bytes(), PackedWeights::packed_bytes(DType::f32, 53, kInputs));
  linear(context, input, one, TensorView(whole.data(), DType::f32, {3, 53}));
  linear(context, input, three, TensorView(stacked.data(), DType::f32, {3, 53}));
  EXPECT_EQ(whole, stacked);
}

TEST(PackedWeights, UsesTheCallersMemory) {
  Context context({.num_threads = 1});
  const std::vector<float> weights(20 * 8, 1.0f);
  const ConstTensorView view(weights.data(), DType::f32, {20, 8});
  const std::size_t bytes = PackedWeights::packed_bytes(DType::f32, 20, 8);
  Buffer memory(bytes + kAlignment);
  const auto packed = PackedWeights::pack(context, view, {memory.data(), bytes});
  EXPECT_EQ(packed.data(), memory.data());
  EXPECT_EQ(packed.bytes(), bytes);
  EXPECT_THROW(PackedWeights::pack(context, view, {memory.data(), bytes - 1}), InvalidArgument);
  EXPECT_THROW(PackedWeights::pack(context, view, {memory.data() + 4, bytes}), InvalidArgument);
  PackedWeights own = PackedWeights::pack(context, view), moved = std::move(own);
  float x[8] = {1, 1, 1, 1, 1, 1, 1, 1}, out[20];
  linear(context, {x, DType::f32, {1, 8}}, moved, {out, DType::f32, {1, 20}});
  for (float y : out) EXPECT_EQ(y, 8.0f);
}

TEST(PackedWeights, ErrorsNameTheArgument) {
  Context context({.num_threads = 1});
  float w[64 * 8] = {};
  const auto pack = [&](std::vector<ConstTensorView> parts) {
    return message_of([&] { PackedWeights::pack(context, parts); });
  };
  EXPECT_EQ(pack({}), "PackedWeights::pack: parts is empty, must hold at least one tensor");
  EXPECT_NE(pack({ConstTensorView(w, DType::i32, {4, 8})}).find("parts[0] is i32, must be f32 or bf16 or f16 or q4_0"),
            std::string::npos);
  EXPECT_NE(pack({ConstTensorView(w, DType::f32, {4})}).find("parts[0] must have 2 dimensions"), std::string::npos);
  EXPECT_NE(pack({ConstTensorView(w, DType::q8_0, {4, 32}, {64, 2})}).find("last dimension of parts[0]"),
            std::string::npos);
  EXPECT_NE(pack({ConstTensorView(w, DType::f32, {15, 8}), ConstTensorView(w, DType::f32, {16, 8})})
                .find("parts[0] has 15 outputs, must be a multiple of 16"),
            std::string::npos);
  EXPECT_NE(pack({ConstTensorView(w, DType::f32, {16, 8}), ConstTensorView(w, DType::f32, {16, 4})})
                .find("parts[1] must be [-1, 8]"),
            std::string::npos);
  EXPECT_NE(pack({ConstTensorView(w, DType::f32, {16, 8}), ConstTensorView(w, DType::bf16, {16, 8})})
                .find("parts[1] must be f32, got bf16"),
            std::string::npos);
  EXPECT_THROW(PackedWeights::packed_bytes(DType::i32, 4, 4), InvalidArgument);
  EXPECT_EQ(message_of([] { PackedWeights::packed_bytes(DType::f32, -1, 4); }),
            "PackedWeights::packed_bytes: sizes are -1 x 4, must be from 0 to 1099511627776");
  EXPECT_NE(message_of([&] {
              PackedWeights::pack_gate_up(context, ConstTensorView(w, DType::f32, {4, 8}),
                                          ConstTensorView(w, DType::f32, {5, 8}));
            }).find("PackedWeights::pack_gate_up: up must be [4, 8]"),
            std::string::npos);
  std::byte memory[64 * 8 + 1];
  EXPECT_NE(message_of([&] {
              PackedWeights::pack(context, ConstTensorView(w, DType::f32, {16, 8}), std::span(memory).subspan(1));
            }).find("memory is at 0x"),
            std::string::npos);
}

// A broadcast view may claim any size: its packed bytes must not wrap to few.
TEST(PackedWeights, SizesThatWrapAreRefused) {
  Context context({.num_threads = 1});
  const float w[32] = {};
  constexpr std::int64_t kMany = std::int64_t{1} << 40, kMost = std::numeric_limits<std::int64_t>::max();
  for (auto [outputs, inputs] : {std::pair{kMany, kMany},
                                 {kMost, std::int64_t{1}},
                                 {std::int64_t{1}, kMost},
                                 {kMost, kMost},
                                 {std::int64_t{1} << 31, std::int64_t{1} << 30}}) {
    EXPECT_THROW(PackedWeights::packed_bytes(DType::f32, outputs, inputs), InvalidArgument) << outputs << " " << inputs;
  }
  EXPECT_EQ(PackedWeights::packed_bytes(DType::f32, kMany, 1), std::size_t(kMany) * 4);
  const ConstTensorView tall(w, DType::f32, {kMost - 15, 32}, {0, 1}), many(w, DType::f32, {kMany, 0}, {0, 1});
  EXPECT_THROW(PackedWeights::pack(context, tall), InvalidArgument);
  EXPECT_THROW(PackedWeights::pack_gate_up(context, tall, tall), InvalidArgument);
  const ConstTensorView parts[] = {many, many};
  EXPECT_THROW(PackedWeights::pack(context, parts), InvalidArgument);
}

// Exact arithmetic multiplies in f32 whatever the weights, and only float methods block their inputs.
TEST(MatmulPlan, KnowsItsRateAndItsBlocks) {
  const DeviceSpec device = device_spec_of(Isa::avx512_bf16);
  for (DType weights : {DType::f32, DType::bf16, DType::q4_1, DType::q8_0}) {
    const MatmulProblem exact{weights, DType::f32, Arithmetic::exact, 64, 8192, 300};
    MatmulProblem fast = exact;
    fast.arithmetic = Arithmetic::fast;
    EXPECT_EQ(flops_per_cycle(exact, device), device.f32_flops_per_cycle);
    EXPECT_EQ(flops_per_cycle(fast, device), device.flops_per_cycle(weights));
    const MatmulPlan plan = plan_matmul(fast, device, 2);
    const bool blocks = weights == DType::f32 || weights == DType::bf16;
    EXPECT_EQ(describe(plan).find("blocks of") != std::string::npos, blocks) << describe(plan);
    EXPECT_EQ(plan.inputs_per_block > 0, blocks);
    EXPECT_EQ(explain(fast, plan, device, 2).size(), blocks ? 5u : 4u);
  }
}

// Nothing is written before all arguments are checked.
TEST(LinearErrors, NameTheArgumentAndWriteNothing) {
  Context context({.num_threads = 1});
  const std::vector<float> w(std::size_t(20 * 8), 1.0f);
  const auto packed = PackedWeights::pack(context, ConstTensorView(w.data(), DType::f32, {20, 8}));
  const auto gated = PackedWeights::pack_gate_up(context, ConstTensorView(w.data(), DType::f32, {10, 8}),
                                                 ConstTensorView(w.data(), DType::f32, {10, 8}));
  std::vector<float> x(16, 1.0f), out(40, 7.0f), bias(20, 1.0f), residual(40, 1.0f);
  const ConstTensorView input(x.data(), DType::f32, {2, 8});
  const TensorView y(out.data(), DType::f32, {2, 20});
  const auto message = [&](const ConstTensorView& in, const PackedWeights& weights, const TensorView& result,
                           const LinearOptions& options) {
    return message_of([&] { linear(context, in, weights, result, options); });
  };
  const auto expect = [&](const std::string& got, const std::string& part) {
    EXPECT_NE(got.find(part), std::string::npos) << got;
  };
  expect(message({x.data(), DType::f32, {2, 7}}, packed, y, {}), "linear: x must be [-1, 8]");
  expect(message({x.data(), DType::i32, {2, 8}}, packed, y, {}), "x must be f32 or bf16 or f16 or s8 or u8, got i32");
  expect(message({x.data(), DType::f32, {2, 8}, {1, 2}}, packed, y, {}), "last dimension of x");
  expect(message(input, gated, y, {}), "pack_gate_up");
  expect(message(input, packed, {out.data(), DType::f32, {2, 21}}, {}), "out must be [2, 20]");
  expect(message(input, packed, {out.data(), DType::boolean, {2, 20}}, {}), "out must be f32");
  expect(message(input, packed, {x.data(), DType::f32, {2, 20}}, {}), "out must not overlap x");
  expect(message(input, packed, {out.data(), DType::f32, {2, 20}, {0, 1}}, {}), "out has stride 0 in dimension 0");
  expect(message(input, packed, y, {.bias = ConstTensorView(bias.data(), DType::f32, {19})}), "bias must be [20]");
  expect(message(input, packed, y, {.bias = ConstTensorView(bias.data(), DType::bf16, {20})}), "bias must be f32");
  expect(message(input, packed, y, {.bias = ConstTensorView(out.data(), DType::f32, {20})}),
         "out must not overlap bias");
  expect(message(input, packed, y, {.residual = ConstTensorView(residual.data(), DType::f32, {1, 20})}),
         "residual must be [2, 20]");
  expect(message(input, packed, y, {.residual = ConstTensorView(residual.data(), DType::bf16, {2, 20})}),
         "residual must be f32, got bf16");
  expect(message(input, packed, y, {.residual = ConstTensorView(out.data() + 1, DType::f32, {1, 20})}), "residual");
  expect(message(input, packed, y, {.residual = ConstTensorView(out.data(), DType::f32, {2, 20}, {10, 1})}),
         "out must not overlap residual");
  expect(message(input, packed, y, {.activation = static_cast<Activation>(77)}), "activation is 77");
  for (float v : out) EXPECT_EQ(v, 7.0f);
}

}  // namespace
}  // namespace ops_transformer
