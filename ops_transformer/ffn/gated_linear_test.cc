// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/ffn/gated_linear.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "ops_transformer/ffn/gated_epilogue_kernel.h"
#include "ops_transformer/gemm/linear_reference.h"
#include "ops_transformer/gemm/quantised_reference.h"
#include "tests/support/dtype_of.h"
#include "tests/support/guarded_buffer.h"
#include "tests/support/message_of.h"
#include "tests/support/random.h"
#include "tests/support/tolerance.h"

namespace ops_transformer {
namespace {

using test::GuardedBuffer;
using test::kDType;
using test::message_of;

template <class Buffer>
std::vector<double> doubles(const Buffer& values, std::size_t begin, std::size_t n) {
  std::vector<double> result;
  for (std::size_t i = begin; i < begin + n; ++i) result.push_back(to_float(values[i]));
  return result;
}

template <class T>
void check(Context& context, std::int64_t rows, std::int64_t outputs, std::int64_t inputs, Activation activation) {
  SCOPED_TRACE(testing::Message() << isa_name(context.isa()) << " M " << rows << " N " << outputs << " K " << inputs
                                  << " activation " << int(activation));
  test::Random random(41);
  const std::int64_t out_stride = outputs + 3;
  GuardedBuffer<T> x(std::size_t(rows * inputs)), gate(std::size_t(outputs * inputs)),
      up(std::size_t(outputs * inputs)), out(std::size_t((rows - 1) * out_stride + outputs));
  test::fill_normal(x, random);
  test::fill_normal(gate, random, 0.3f);
  test::fill_normal(up, random, 0.3f);
  const auto packed = PackedWeights::pack_gate_up(context, ConstTensorView(gate.data(), kDType<T>, {outputs, inputs}),
                                                  ConstTensorView(up.data(), kDType<T>, {outputs, inputs}));
  gated_linear(context, {x.data(), kDType<T>, {rows, inputs}}, packed,
               {out.data(), kDType<T>, {rows, outputs}, {out_stride, 1}}, {.activation = activation});
  const auto gate_values = doubles(gate, 0, gate.size()), up_values = doubles(up, 0, up.size());
  for (std::int64_t r = 0; r < rows; ++r) {
    const auto row = doubles(x, std::size_t(r * inputs), std::size_t(inputs));
    const auto g = reference::linear(row, gate_values, {}, activation, {});
    const auto u = reference::linear(row, up_values, {}, Activation::none, {});
    for (std::size_t j = 0; j < std::size_t(outputs); ++j) {
      const double expected = g.value[j] * u.value[j];
      // Each factor errs by its own bound while the other stands as it is.
      const double magnitude = g.magnitude[j] * std::abs(u.value[j]) + u.magnitude[j] * std::abs(g.value[j]);
      ASSERT_NEAR(to_float(out[std::size_t(r * out_stride) + j]), expected,
                  test::tolerance(double(inputs), magnitude, expected, kDType<T>))
          << "row " << r << " output " << j;
    }
    for (std::int64_t j = outputs; j < out_stride && r + 1 < rows; ++j)
      ASSERT_TRUE(std::isnan(to_float(out[std::size_t(r * out_stride + j)])));
  }
}

template <class T>
class GatedLinear : public testing::Test {};
using Types = testing::Types<float, BFloat16, Float16>;
TYPED_TEST_SUITE(GatedLinear, Types);

TYPED_TEST(GatedLinear, MatchesReferenceAtEveryLevel) {
  for (Isa isa : supported_isas()) {
    if (!gated_epilogue.row(isa)) continue;
    Context context({.num_threads = 2, .isa = isa});
    for (Activation activation : {Activation::none, Activation::relu, Activation::silu, Activation::gelu_tanh,
                                  Activation::gelu_erf, Activation::gelu_fast})
      check<TypeParam>(context, 7, 40, 65, activation);
    for (std::int64_t rows : {1, 2, 13, 50}) {
      for (std::int64_t outputs : {1, 16, 17, 33, 100}) check<TypeParam>(context, rows, outputs, 96, Activation::silu);
    }
  }
}

// Weights of GGUF blocks: the exact path against float64 over the dequantised weights; the fast one against the same
// sums out of two calls of linear, to the bit before the product's rounding.
TEST(GatedLinearQuantised, MatchesReferenceAtEveryLevel) {
  constexpr std::int64_t kRows = 7, kOutputs = 40, kInputs = 256;
  for (Isa isa : supported_isas()) {
    Context context({.num_threads = 2, .isa = isa});
    for (DType dtype : reference::kQuantisedTypes) {
      SCOPED_TRACE(testing::Message() << isa_name(isa) << " " << dtype_name(dtype));
      test::Random random(19);
      const DTypeInfo& info = dtype_info(dtype);
      const std::size_t row_bytes = kInputs / info.block_len * info.block_bytes;
      GuardedBuffer<std::byte> gate(kOutputs * row_bytes), up(kOutputs * row_bytes);
      GuardedBuffer<float> x(kRows * kInputs), out(kRows * kOutputs), g(kRows * kOutputs), u(kRows * kOutputs);
      test::fill_normal(x, random);
      std::vector<double> values[2];
      for (auto* weights : {&gate, &up}) {
        for (std::size_t i = 0; i < weights->size(); ++i) {
          const int at = int(i % info.block_bytes);
          const auto [scale, minimum] = reference::halves_of_block(dtype);
          // The high bytes of the scales keep them near 0.01; the rest is any code.
          const bool high = at == scale + 1 || (minimum >= 0 && at == minimum + 1);
          (*weights)[i] = std::byte(high ? 0x20 : random.integer(0, 255));
        }
        for (std::size_t r = 0; r < kOutputs; ++r) {
          for (double v : reference::dequantise_row(dtype, weights->data() + r * row_bytes, kInputs))
            values[weights == &up].push_back(v);
        }
      }
      const ConstTensorView gate_view(gate.data(), dtype, {kOutputs, kInputs}),
          up_view(up.data(), dtype, {kOutputs, kInputs}), x_view(x.data(), DType::f32, {kRows, kInputs});
      const auto packed = PackedWeights::pack_gate_up(context, gate_view, up_view);
      const TensorView out_view(out.data(), DType::f32, {kRows, kOutputs});
      gated_linear(context, x_view, packed, out_view, {.arithmetic = Arithmetic::exact});
      for (std::size_t r = 0; r < kRows; ++r) {
        const auto row = doubles(x, r * kInputs, kInputs);
        const auto gated = reference::linear(row, values[0], {}, Activation::silu, {});
        const auto upper = reference::linear(row, values[1], {}, Activation::none, {});
        for (std::size_t j = 0; j < kOutputs; ++j) {
          const double expected = gated.value[j] * upper.value[j];
          const double magnitude =
              gated.magnitude[j] * std::abs(upper.value[j]) + upper.magnitude[j] * std::abs(gated.value[j]);
          ASSERT_NEAR(out[r * kOutputs + j], expected, test::tolerance(kInputs, magnitude, expected, DType::f32));
        }
      }
      gated_linear(context, x_view, packed, out_view);
      linear(context, x_view, PackedWeights::pack(context, gate_view), {g.data(), DType::f32, {kRows, kOutputs}});
      linear(context, x_view, PackedWeights::pack(context, up_view), {u.data(), DType::f32, {kRows, kOutputs}});
      for (std::size_t i = 0; i < out.size(); ++i) {
        const double expected = reference::activate(g[i], Activation::silu) * u[i];
        ASSERT_NEAR(out[i], expected, test::tolerance(1, std::abs(double(g[i]) * u[i]), expected, DType::f32));
      }
    }
  }
}

TEST(GatedLinearBits, DependOnTheRowAlone) {
  constexpr std::int64_t kRows = 40, kOutputs = 72, kInputs = 1025;
  test::Random random(7);
  GuardedBuffer<float> x(kRows * kInputs), gate(kOutputs * kInputs), up(kOutputs * kInputs), whole(kRows * kOutputs);
  test::fill_normal(x, random);
  test::fill_normal(gate, random);
  test::fill_normal(up, random);
  Context one({.num_threads = 1});
  const auto packed = PackedWeights::pack_gate_up(one, ConstTensorView(gate.data(), DType::f32, {kOutputs, kInputs}),
                                                  ConstTensorView(up.data(), DType::f32, {kOutputs, kInputs}));
  gated_linear(one, {x.data(), DType::f32, {kRows, kInputs}}, packed, {whole.data(), DType::f32, {kRows, kOutputs}});
  for (int threads : {1, 2, 3}) {
    Context context({.num_threads = threads});
    for (std::int64_t rows : {1, 6, 17}) {
      GuardedBuffer<float> out(std::size_t(rows * kOutputs));
      gated_linear(context, {x.data(), DType::f32, {rows, kInputs}}, packed,
                   {out.data(), DType::f32, {rows, kOutputs}});
      EXPECT_EQ(std::memcmp(out.data(), whole.data(), out.size() * sizeof(float)), 0) << rows << " " << threads;
    }
  }
}

TEST(GatedLinearErrors, NameTheArgument) {
  Context context({.num_threads = 1});
  float w[32 * 4] = {}, x[8] = {}, out[64];
  const auto gated = PackedWeights::pack_gate_up(context, ConstTensorView(w, DType::f32, {20, 4}),
                                                 ConstTensorView(w, DType::f32, {20, 4}));
  const auto plain = PackedWeights::pack(context, ConstTensorView(w, DType::f32, {20, 4}));
  const auto message = [&](const ConstTensorView& input, const PackedWeights& weights, const TensorView& y,
                           Activation activation) -> std::string {
    return message_of([&] { gated_linear(context, input, weights, y, {.activation = activation}); });
  };
  const ConstTensorView input(x, DType::f32, {2, 4});
  const TensorView y(out, DType::f32, {2, 20});
  EXPECT_EQ(message(input, gated, y, Activation::silu), "");
  EXPECT_NE(message(input, plain, y, Activation::silu).find("gate_up"), std::string::npos);
  EXPECT_NE(message(ConstTensorView(x, DType::f32, {2, 3}), gated, y, Activation::silu).find("x must be [-1, 4]"),
            std::string::npos);
  EXPECT_NE(message(input, gated, TensorView(out, DType::f32, {2, 32}), Activation::silu).find("out must be [2, 20]"),
            std::string::npos);
  EXPECT_NE(message(input, gated, TensorView(x, DType::f32, {2, 20}), Activation::silu).find("overlap"),
            std::string::npos);
  EXPECT_NE(message(input, gated, y, static_cast<Activation>(9)).find("activation is 9"), std::string::npos);
  EXPECT_THROW(PackedWeights::pack_gate_up(context, ConstTensorView(w, DType::f32, {20, 4}),
                                           ConstTensorView(w, DType::f32, {16, 4})),
               InvalidArgument);
}

}  // namespace
}  // namespace ops_transformer
