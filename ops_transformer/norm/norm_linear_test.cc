// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/norm/norm_linear.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "ops_transformer/gemm/linear_reference.h"
#include "ops_transformer/norm/layer_norm.h"
#include "ops_transformer/norm/layer_norm_reference.h"
#include "ops_transformer/norm/norm_kernel.h"
#include "ops_transformer/norm/rms_norm.h"
#include "ops_transformer/norm/rms_norm_reference.h"
#include "ops_transformer/profiler/profiler.h"
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

template <class T>
struct Operands {
  Operands(std::int64_t num_rows, std::int64_t num_inputs, std::int64_t num_outputs)
      : rows(num_rows),
        inputs(num_inputs),
        outputs(num_outputs),
        x(std::size_t(rows * inputs)),
        residual(x.size()),
        sum(x.size()),
        gains{std::size_t(inputs)},
        shift{std::size_t(inputs)},
        weight(std::size_t(outputs * inputs)) {
    test::Random random(3);
    test::fill_normal(x, random);
    test::fill_normal(residual, random);
    test::fill_normal(gains, random);
    test::fill_normal(shift, random);
    test::fill_normal(weight, random, 0.3f);
  }
  RowNorm norm(NormKind kind) {
    RowNorm norm{.kind = kind, .weight = ConstTensorView(gains.data(), DType::f32, {inputs}), .eps = 1e-6f};
    if (kind == NormKind::layer) norm.bias = ConstTensorView(shift.data(), DType::f32, {inputs});
    norm.residual = ConstTensorView(residual.data(), kDType<T>, {rows, inputs});
    norm.residual_out = TensorView(sum.data(), kDType<T>, {rows, inputs});
    return norm;
  }
  ConstTensorView x_view() const { return {x.data(), kDType<T>, {rows, inputs}}; }

  std::int64_t rows, inputs, outputs;
  GuardedBuffer<T> x, residual, sum;
  GuardedBuffer<float> gains, shift, weight;
};

TEST(NormLinear, MatchesReferenceAtEveryLevel) {
  for (Isa isa : supported_isas()) {
    if (!rms_norm_rows.row(isa)) continue;
    Context context({.num_threads = 2, .isa = isa});
    for (std::int64_t rows : {1, 2, 7, 70}) {
      for (NormKind kind : {NormKind::rms, NormKind::layer}) {
        SCOPED_TRACE(testing::Message() << isa_name(isa) << " rows " << rows << " kind " << int(kind));
        Operands<float> t(rows, 67, 37);
        GuardedBuffer<float> out(std::size_t(rows * t.outputs));
        const auto packed =
            PackedWeights::pack(context, ConstTensorView(t.weight.data(), DType::f32, {t.outputs, t.inputs}));
        norm_linear(context, t.x_view(), t.norm(kind), packed, {out.data(), DType::f32, {rows, t.outputs}},
                    {.activation = Activation::none});
        const std::vector<double> weights(t.weight.begin(), t.weight.end()), gains(t.gains.begin(), t.gains.end()),
            shift(t.shift.begin(), t.shift.end());
        for (std::int64_t r = 0; r < rows; ++r) {
          std::vector<double> h;
          for (std::int64_t i = 0; i < t.inputs; ++i) {
            const auto at = std::size_t(r * t.inputs + i);
            h.push_back(double(t.x[at] + t.residual[at]));
            EXPECT_EQ(t.sum[at], t.x[at] + t.residual[at]);
          }
          reference::LayerNormRow row;
          if (kind == NormKind::layer) {
            row = reference::layer_norm(h, gains, shift, 1e-6);
          } else {
            row.value = row.magnitude = reference::rms_norm(h, gains, 1e-6);
          }
          const auto expected = reference::linear(row.value, weights, {}, Activation::none, {});
          for (std::int64_t j = 0; j < t.outputs; ++j) {
            double magnitude = 0;
            for (std::int64_t i = 0; i < t.inputs; ++i) {
              magnitude += std::abs(row.magnitude[std::size_t(i)] * weights[std::size_t(j * t.inputs + i)]);
            }
            ASSERT_NEAR(out[std::size_t(r * t.outputs + j)], expected.value[std::size_t(j)],
                        test::tolerance(2.0 * double(t.inputs), magnitude, expected.value[std::size_t(j)], DType::f32))
                << "row " << r << " output " << j;
          }
        }
      }
    }
  }
}

// Every dtype of x and of weights: the bits of the norm into f32 and linear of that.
template <class T, class Weight>
void expect_bits_of_two_calls(std::int64_t rows, NormKind kind) {
  Operands<T> t(rows, 96, 40);
  GuardedBuffer<Weight> weight(t.weight.size());
  test::Random random(8);
  test::fill_normal(weight, random, 0.3f);
  GuardedBuffer<float> normal(t.x.size()), fused(std::size_t(rows * t.outputs)), apart(fused.size());
  for (int threads : {1, 2, 3}) {
    for (Isa isa : supported_isas()) {
      SCOPED_TRACE(testing::Message() << isa_name(isa) << " rows " << rows << " threads " << threads);
      Context context({.num_threads = threads, .isa = isa});
      const auto packed =
          PackedWeights::pack(context, ConstTensorView(weight.data(), kDType<Weight>, {t.outputs, t.inputs}));
      const RowNorm norm = t.norm(kind);
      norm_linear(context, t.x_view(), norm, packed, {fused.data(), DType::f32, {rows, t.outputs}});
      const TensorView rows_out(normal.data(), DType::f32, {rows, t.inputs});
      if (kind == NormKind::rms) {
        rms_norm(context, t.x_view(), norm.weight, rows_out, {.eps = norm.eps, .residual = norm.residual});
      } else {
        layer_norm(context, t.x_view(), norm.weight, rows_out,
                   {.eps = norm.eps, .bias = norm.bias, .residual = norm.residual});
      }
      linear(context, rows_out, packed, {apart.data(), DType::f32, {rows, t.outputs}});
      ASSERT_EQ(std::memcmp(fused.data(), apart.data(), fused.size() * sizeof(float)), 0);
    }
  }
}

TEST(NormLinear, HasTheBitsOfTwoCalls) {
  for (std::int64_t rows : {1, 3, 100}) {
    for (NormKind kind : {NormKind::rms, NormKind::layer}) {
      expect_bits_of_two_calls<float, float>(rows, kind);
      expect_bits_of_two_calls<BFloat16, BFloat16>(rows, kind);
      expect_bits_of_two_calls<Float16, Float16>(rows, kind);
      expect_bits_of_two_calls<BFloat16, float>(rows, kind);
    }
  }
}

TEST(NormLinearProfile, CountsTheNormButNoRowsBetween) {
  Context context({.num_threads = 1});
  Profiler profiler;
  Operands<float> t(2, 32, 16);
  float out[32];
  const auto packed = PackedWeights::pack(context, ConstTensorView(t.weight.data(), DType::f32, {16, 32}));
  context.set_profiler(&profiler);
  norm_linear(context, t.x_view(), {.weight = ConstTensorView(t.gains.data(), DType::f32, {32})}, packed,
              {out, DType::f32, {2, 16}});
  ASSERT_EQ(profiler.totals().size(), 1u);
  EXPECT_EQ(profiler.totals()[0].op, "norm_linear");
  EXPECT_EQ(profiler.totals()[0].bytes, 4 * (2 * 32 + 32 + 16 * 32 + 2 * 16));
}

TEST(NormLinearErrors, NameTheArgument) {
  Context context({.num_threads = 1});
  Operands<float> t(2, 32, 16);
  float out[32];
  const auto packed = PackedWeights::pack(context, ConstTensorView(t.weight.data(), DType::f32, {16, 32}));
  const auto message = [&](const RowNorm& norm) {
    return message_of([&] { norm_linear(context, t.x_view(), norm, packed, {out, DType::f32, {2, 16}}); });
  };
  EXPECT_EQ(message(t.norm(NormKind::layer)), "");
  RowNorm norm = t.norm(NormKind::rms);
  norm.weight = ConstTensorView(t.gains.data(), DType::f32, {31});
  EXPECT_EQ(message(norm), "norm_linear: norm.weight must be [32] (-1: any), got [31] f32");
  norm = t.norm(NormKind::rms);
  norm.bias = norm.weight;
  EXPECT_EQ(message(norm), "norm_linear: norm.bias is given, must not be for an RMS norm");
  norm = t.norm(NormKind::layer);
  norm.weight_offset = 1.0f;
  EXPECT_NE(message(norm).find("norm.weight_offset is 1"), std::string::npos);
  norm = t.norm(NormKind::rms);
  norm.eps = std::numeric_limits<float>::quiet_NaN();
  EXPECT_NE(message(norm).find("norm.eps is nan"), std::string::npos);
  norm = t.norm(NormKind::rms);
  norm.residual_out = TensorView(out, DType::f32, {1, 32});
  EXPECT_NE(message(norm).find("norm.residual_out must be [2, 32]"), std::string::npos);
}

}  // namespace
}  // namespace ops_transformer
