// SPDX-License-Identifier: Apache-2.0
// What linear does to rows on their way in and to sums on their way out.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "ops_transformer/gemm/linear.h"
#include "ops_transformer/gemm/linear_reference.h"
#include "ops_transformer/gemm/matmul.h"
#include "tests/support/guarded_buffer.h"
#include "tests/support/message_of.h"
#include "tests/support/random.h"
#include "tests/support/tolerance.h"

namespace ops_transformer {
namespace {

using test::GuardedBuffer;
using test::message_of;

constexpr DType kWeights[] = {DType::f32, DType::bf16, DType::f16, DType::s8};
constexpr std::int64_t kInputs = 70, kOutputs = 85;

template <class Body>
void at_every_level(int num_threads, const Body& body) {
  for (Isa isa : supported_isas()) {
    SCOPED_TRACE(isa_name(isa));
    Context context({.num_threads = num_threads, .isa = isa});
    body(context);
    if (testing::Test::HasFatalFailure()) return;
  }
}

PackedWeights random_weights(Context& context, DType dtype, test::Random& random, std::int64_t outputs = kOutputs,
                             std::int64_t inputs = kInputs) {
  std::vector<std::byte> bytes(std::size_t(outputs * inputs) * element_bytes(dtype));
  for (std::size_t i = 0; i < std::size_t(outputs * inputs); ++i) {
    const float f = random.normal();
    const BFloat16 b = to_bfloat16(f);
    const Float16 h = to_float16(f);
    const auto s = std::int8_t(random.integer(-127, 127));
    if (dtype == DType::f32) std::memcpy(bytes.data() + 4 * i, &f, 4);
    if (dtype == DType::bf16) std::memcpy(bytes.data() + 2 * i, &b, 2);
    if (dtype == DType::f16) std::memcpy(bytes.data() + 2 * i, &h, 2);
    if (dtype == DType::s8) std::memcpy(bytes.data() + i, &s, 1);
  }
  return PackedWeights::pack(context, ConstTensorView(bytes.data(), dtype, {outputs, inputs}));
}

std::vector<float> plain(Context& context, const std::vector<float>& x, const PackedWeights& weights) {
  const std::int64_t rows = std::int64_t(x.size()) / weights.num_inputs();
  std::vector<float> out(std::size_t(rows * weights.num_outputs()));
  linear(context, {x.data(), DType::f32, {rows, weights.num_inputs()}}, weights,
         {out.data(), DType::f32, {rows, weights.num_outputs()}});
  return out;
}

TEST(LinearFusion, GatheredRowsAreTheRows) {
  at_every_level(3, [](Context& context) {
    test::Random random(4);
    for (DType dtype : kWeights) {
      const auto weights = random_weights(context, dtype, random);
      std::vector<float> x(20 * kInputs);
      test::fill_normal(x, random);
      const auto all = plain(context, x, weights);
      for (std::int64_t rows : {0, 1, 7, 150}) {
        std::vector<std::int32_t> ids;
        for (std::int64_t i = 0; i < rows; ++i) ids.push_back(std::int32_t(random.integer(0, 19)));
        GuardedBuffer<float> out(std::size_t(rows * kOutputs));
        LinearOptions options;
        options.x_rows = ConstTensorView(ids.data(), DType::i32, {rows});
        linear(context, {x.data(), DType::f32, {20, kInputs}}, weights, {out.data(), DType::f32, {rows, kOutputs}},
               options);
        for (std::int64_t r = 0; r < rows; ++r)
          ASSERT_EQ(std::memcmp(out.data() + r * kOutputs, all.data() + ids[std::size_t(r)] * kOutputs, kOutputs * 4),
                    0);
      }
    }
  });
}

// Added in the order of the rows, whatever the threads: the bits are those of a loop.
TEST(LinearFusion, ScatterAddIsALoopOfAdditions) {
  at_every_level(3, [](Context& context) {
    test::Random random(14);
    for (DType dtype : kWeights) {
      const auto weights = random_weights(context, dtype, random);
      for (std::int64_t rows : {1, 40, 450}) {
        std::vector<float> x(std::size_t(rows * kInputs)), scales(static_cast<std::size_t>(rows));
        test::fill_normal(x, random);
        test::fill_normal(scales, random);
        std::vector<std::int32_t> ids;
        for (std::int64_t i = 0; i < rows; ++i) ids.push_back(std::int32_t(random.integer(-1, 8)));
        std::vector<float> out(9 * kOutputs), expected;
        test::fill_normal(out, random);
        expected = out;
        const auto y = plain(context, x, weights);
        for (std::int64_t r = 0; r < rows; ++r) {
          const auto row = std::size_t(r);
          for (std::size_t j = 0; ids[row] >= 0 && j < kOutputs; ++j) {
            const float scaled = y[row * kOutputs + j] * scales[row];
            expected[std::size_t(ids[row]) * kOutputs + j] = scaled + expected[std::size_t(ids[row]) * kOutputs + j];
          }
        }
        LinearOptions options;
        options.out_rows = ConstTensorView(ids.data(), DType::i32, {rows});
        options.row_scales = ConstTensorView(scales.data(), DType::f32, {rows});
        linear(context, {x.data(), DType::f32, {rows, kInputs}}, weights, {out.data(), DType::f32, {9, kOutputs}},
               options);
        ASSERT_EQ(std::memcmp(out.data(), expected.data(), out.size() * 4), 0) << dtype_name(dtype) << " " << rows;
      }
    }
  });
}

TEST(LinearFusion, CodesAreRoundedHalfToEvenThenClamped) {
  at_every_level(1, [](Context& context) {
    const float one = 1.0f, values[] = {.5f, 1.5f, 2.5f, -.5f, -1.5f, 127.6f, -128.4f, -200.0f, 3e38f};
    const auto weights = PackedWeights::pack(context, ConstTensorView(&one, DType::f32, {1, 1}));
    GuardedBuffer<std::int8_t> codes(9);
    const ConstTensorView x(values, DType::f32, {9, 1});
    linear(context, x, weights, {codes.data(), DType::s8, {9, 1}});
    EXPECT_EQ(std::vector<int>(codes.begin(), codes.end()), (std::vector<int>{0, 2, 2, 0, -2, 127, -128, -128, 127}));
    GuardedBuffer<std::uint8_t> bytes(9);
    linear(context, x, weights, {bytes.data(), DType::u8, {9, 1}}, {.out_scale = 0.5f, .out_zero = 3});
    EXPECT_EQ(std::vector<int>(bytes.begin(), bytes.end()), (std::vector<int>{4, 6, 8, 2, 0, 255, 0, 0, 255}));
    const float nan[] = {1.0f, std::numeric_limits<float>::quiet_NaN()};
    EXPECT_NE(message_of([&] {
                linear(context, {nan, DType::f32, {2, 1}}, weights, {codes.data(), DType::s8, {2, 1}});
              }).find("NaN, which out of s8 has no code for"),
              std::string::npos);
  });
}

TEST(LinearFusion, CodesMatchReference) {
  at_every_level(2, [](Context& context) {
    test::Random random(24);
    for (DType dtype : kWeights) {
      const auto weights = random_weights(context, dtype, random);
      std::vector<float> x(13 * kInputs);
      test::fill_normal(x, random);
      const auto y = plain(context, x, weights);
      const float scale = dtype == DType::s8 ? 11.0f : 0.13f;
      GuardedBuffer<std::int8_t> out(12 * (kOutputs + 5) + kOutputs);
      linear(context, {x.data(), DType::f32, {13, kInputs}}, weights,
             {out.data(), DType::s8, {13, kOutputs}, {kOutputs + 5, 1}}, {.out_scale = scale, .out_zero = -4});
      for (std::size_t r = 0; r < 13; ++r) {
        for (std::size_t j = 0; j < kOutputs; ++j) {
          const double exact = double(y[r * kOutputs + j]) / scale, near = std::nearbyint(exact);
          const double expected = std::fmin(127, std::fmax(-128, near - 4));
          const int code = out[r * (kOutputs + 5) + j];
          if (std::abs(std::abs(exact - near) - 0.5) < 1e-4) {
            ASSERT_NEAR(code, expected, 1);
          } else {
            ASSERT_EQ(code, expected);
          }
        }
        for (std::size_t j = kOutputs; j < kOutputs + 5 && r < 12; ++j) ASSERT_EQ(out[r * (kOutputs + 5) + j], -1);
      }
    }
  });
}

// A prologue writes the rows itself, whatever form the weights want them in.
void doubled_row(const void* args, std::int64_t row, float* out) noexcept {
  const float* x = static_cast<const float*>(args) + row * kInputs;
  for (std::int64_t i = 0; i < kInputs; ++i) out[i] = 2 * x[i];
}
TEST(LinearFusion, APrologueWritesTheRows) {
  at_every_level(3, [](Context& context) {
    test::Random random(34);
    for (DType dtype : kWeights) {
      const auto weights = random_weights(context, dtype, random);
      for (std::int64_t rows : {1, 9, 200}) {
        std::vector<float> x(std::size_t(rows * kInputs)), doubled, out(std::size_t(rows * kOutputs));
        test::fill_normal(x, random);
        for (float v : x) doubled.push_back(2 * v);
        const auto expected = plain(context, doubled, weights);
        CallScope call(context);
        const MatmulPlan plan = plan_matmul({.weights = dtype,
                                             .x = DType::f32,
                                             .num_rows = rows,
                                             .num_inputs = kInputs,
                                             .num_tiles = (kOutputs + kTileOutputs - 1) / kTileOutputs,
                                             .has_prologue = true},
                                            this_device(context.isa()), call.num_threads());
        EpilogueArgs epilogue{};
        epilogue.out = out.data();
        epilogue.out_stride = epilogue.num_outputs = kOutputs;
        epilogue.out_dtype = DType::f32;
        epilogue.activation = Activation::none;
        const ConstTensorView like(nullptr, DType::f32, {rows, kInputs});
        const RowPrologue prologue{doubled_row, x.data()};
        run_matmul(call, plan, like, weights, linear_epilogue.at(context.isa()), epilogue, &prologue);
        ASSERT_EQ(std::memcmp(out.data(), expected.data(), out.size() * 4), 0) << dtype_name(dtype) << " " << rows;
      }
    }
  });
}

TEST(LinearFusion, ErrorsNameTheArgument) {
  Context context({.num_threads = 1});
  const float w[8] = {};
  float x[8] = {}, y[8] = {}, scales[2] = {};
  std::int8_t codes[8] = {};
  std::int32_t ids[2] = {0, 2};
  const auto weights = PackedWeights::pack(context, ConstTensorView(w, DType::f32, {2, 2}));
  const ConstTensorView input(x, DType::f32, {2, 2}), ids_view(ids, DType::i32, {2}),
      scales_view(scales, DType::f32, {2});
  const TensorView out(y, DType::f32, {2, 2}), code_out(codes, DType::s8, {2, 2});
  const auto message = [&](const TensorView& to, const auto& set) {
    LinearOptions options;
    set(options);
    return message_of([&] { linear(context, input, weights, to, options); });
  };
  const auto expect = [&](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  expect(message(out, [&](LinearOptions& o) { o.x_rows = ids_view; }), "x_rows[1] is 2, must be below 2 and from 0");
  expect(message(out, [&](LinearOptions& o) { o.out_rows = ids_view; }), "out_rows[1] is 2, must be below 2");
  expect(message(out, [&](LinearOptions& o) { o.out_rows = scales_view; }), "out_rows must be i32");
  expect(message(out, [&](LinearOptions& o) { o.row_scales = ConstTensorView(scales, DType::f32, {1}); }),
         "row_scales must be [2]");
  expect(message(out, [&](LinearOptions& o) { o.x_scales = scales_view; }), "x_scales is given, but x is f32");
  expect(message(out, [&](LinearOptions& o) { o.x_zero = 1; }), "x_zero is 1");
  expect(message(out, [&](LinearOptions& o) { o.out_scale = 2.0f; }), "out_scale is 2");
  expect(message(code_out, [&](LinearOptions& o) { o.out_scale = 0.0f; }), "out_scale is 0");
  expect(message(code_out, [&](LinearOptions& o) { o.out_zero = 128; }), "out_zero is 128, must be from -128 to 127");
  expect(message(code_out, [&](LinearOptions& o) { o.out_rows = ConstTensorView(ids, DType::i32, {2}); }),
         "takes no out_rows");
  expect(message(out, [&](LinearOptions& o) { o.row_scales = ConstTensorView(y, DType::f32, {2}); }), "overlap");
  for (float v : y) EXPECT_EQ(v, 0.0f);  // nothing has been written
}

}  // namespace
}  // namespace ops_transformer
