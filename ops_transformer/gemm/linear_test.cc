// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/gemm/linear.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "ops_transformer/gemm/float_multiply_kernel.h"
#include "ops_transformer/gemm/linear_reference.h"
#include "tests/support/guarded_buffer.h"
#include "tests/support/random.h"
#include "tests/support/tolerance.h"

namespace ops_transformer {
namespace {

using test::GuardedBuffer;

// A matrix of a float dtype before a guard page; element (r, c) at r * stride + c.
class Matrix {
 public:
  Matrix(DType dtype, std::int64_t rows, std::int64_t columns, std::int64_t gap = 0)
      : dtype_(dtype), rows_(rows), columns_(columns), stride_(columns + gap), bytes_(bytes_needed()) {}

  void set(std::int64_t r, std::int64_t c, float x) {
    const BFloat16 b = to_bfloat16(x);
    const Float16 h = to_float16(x);
    if (dtype_ == DType::f32) std::memcpy(at(r, c), &x, 4);
    if (dtype_ == DType::bf16) std::memcpy(at(r, c), &b, 2);
    if (dtype_ == DType::f16) std::memcpy(at(r, c), &h, 2);
  }
  float get(std::int64_t r, std::int64_t c) const {
    float x = 0;
    BFloat16 b;
    Float16 h;
    if (dtype_ == DType::f32) std::memcpy(&x, at(r, c), 4);
    if (dtype_ == DType::bf16) std::memcpy(&b, at(r, c), 2), x = to_float(b);
    if (dtype_ == DType::f16) std::memcpy(&h, at(r, c), 2), x = to_float(h);
    return x;
  }
  Matrix& fill(test::Random& random, float deviation = 1.0f) {
    for (std::int64_t r = 0; r < rows_; ++r) {
      for (std::int64_t c = 0; c < columns_; ++c) set(r, c, random.normal(deviation));
    }
    return *this;
  }
  TensorView view() { return {bytes_.data(), dtype_, {rows_, columns_}, {stride_, 1}}; }
  TensorView vector() { return {bytes_.data(), dtype_, {columns_}}; }
  std::vector<double> row(std::int64_t r) const {
    std::vector<double> values;
    for (std::int64_t c = 0; c < columns_; ++c) values.push_back(get(r, c));
    return values;
  }
  std::vector<double> all() const {
    std::vector<double> values;
    for (std::int64_t r = 0; r < rows_; ++r) {
      for (std::int64_t c = 0; c < columns_; ++c) values.push_back(get(r, c));
    }
    return values;
  }
  std::int64_t stride() const { return stride_; }
  std::size_t size_bytes() const { return bytes_.size(); }
  const std::byte* at(std::int64_t r, std::int64_t c) const {
    return bytes_.data() + std::size_t(r * stride_ + c) * element_bytes(dtype_);
  }
  std::byte* at(std::int64_t r, std::int64_t c) { return const_cast<std::byte*>(std::as_const(*this).at(r, c)); }

 private:
  std::size_t bytes_needed() const {
    return rows_ == 0 ? 0 : std::size_t((rows_ - 1) * stride_ + columns_) * element_bytes(dtype_);
  }
  DType dtype_;
  std::int64_t rows_, columns_, stride_;
  GuardedBuffer<std::byte> bytes_;
};

struct Case {
  DType weights, x, out;
  Arithmetic arithmetic;
  std::int64_t rows, outputs, inputs;
  bool bias, residual;
  Activation activation;
};

void check(Context& context, const Case& c) {
  SCOPED_TRACE(testing::Message() << isa_name(context.isa()) << " weights " << dtype_name(c.weights) << " x "
                                  << dtype_name(c.x) << " out " << dtype_name(c.out) << " exact "
                                  << int(c.arithmetic == Arithmetic::exact) << " M " << c.rows << " N " << c.outputs
                                  << " K " << c.inputs << " activation " << int(c.activation));
  test::Random random(std::uint64_t(c.rows * 1000003 + c.outputs * 1009 + c.inputs));
  Matrix x(c.x, c.rows, c.inputs, 3), weights(c.weights, c.outputs, c.inputs, 1), out(c.out, c.rows, c.outputs, 2),
      residual(c.out, c.rows, c.outputs, 1), bias(DType::f32, 1, c.outputs);
  x.fill(random);
  weights.fill(random);
  residual.fill(random);
  bias.fill(random);
  const auto packed = PackedWeights::pack(context, weights.view());
  LinearOptions options{.activation = c.activation, .arithmetic = c.arithmetic};
  if (c.bias) options.bias = bias.vector();
  if (c.residual) options.residual = residual.view();
  linear(context, x.view(), packed, out.view(), options);
  const auto weight_values = weights.all();
  for (std::int64_t r = 0; r < c.rows; ++r) {
    std::vector<double> row = x.row(r);
    if (c.weights == DType::bf16 && c.arithmetic == Arithmetic::fast) {
      for (double& v : row) v = to_float(to_bfloat16(float(v)));
    }
    const auto expected =
        reference::linear(row, weight_values, c.bias || c.inputs == 0 ? bias.row(0) : std::vector<double>{},
                          c.activation, c.residual ? residual.row(r) : std::vector<double>{});
    for (std::int64_t j = 0; j < c.outputs; ++j) {
      const double e = expected.value[std::size_t(j)];
      ASSERT_NEAR(out.get(r, j), e, test::tolerance(double(c.inputs + 2), expected.magnitude[std::size_t(j)], e, c.out))
          << "row " << r << " output " << j;
    }
    if (r + 1 < c.rows) {
      for (std::int64_t j = c.outputs; j < out.stride(); ++j) ASSERT_TRUE(std::isnan(out.get(r, j)));
    }
  }
}

constexpr DType kFloats[] = {DType::f32, DType::bf16, DType::f16};

TEST(Linear, EveryDTypeAtEveryLevel) {
  for (Isa isa : supported_isas()) {
    if (!multiply_f32.row(isa)) continue;
    Context context({.num_threads = 2, .isa = isa});
    for (DType weights : kFloats) {
      for (DType x : kFloats) {
        for (Arithmetic arithmetic : {Arithmetic::fast, Arithmetic::exact}) {
          for (DType out : kFloats) {
            check(context, {weights, x, out, arithmetic, 5, 35, 67, true, true, Activation::silu});
            check(context, {weights, x, out, arithmetic, 1, 16, 130, false, false, Activation::none});
          }
        }
      }
    }
  }
}

TEST(Linear, OddSizesAtEveryLevel) {
  for (Isa isa : supported_isas()) {
    if (!multiply_f32.row(isa)) continue;
    Context context({.num_threads = 2, .isa = isa});
    for (DType weights : kFloats) {
      for (std::int64_t rows : {1, 2, 3, 6, 7, 11, 17, 26}) {
        for (std::int64_t outputs : {1, 15, 17, 33, 64, 66, 129, 270})
          check(context, {weights, DType::f32, DType::f32, Arithmetic::fast, rows, outputs, rows % 2 ? 61 : 96, false,
                          rows % 3 == 0, Activation::none});
      }
      for (std::int64_t inputs : {1, 2, 3, 64, 577, 1030})
        check(context,
              {weights, weights, DType::f32, Arithmetic::fast, 13, 70, inputs, true, false, Activation::gelu_tanh});
      check(context, {weights, DType::f32, DType::f32, Arithmetic::fast, 250, 100, 300, true, false, Activation::none});
    }
  }
}

TEST(Linear, Activations) {
  for (Isa isa : supported_isas()) {
    if (!multiply_f32.row(isa)) continue;
    Context context({.num_threads = 1, .isa = isa});
    for (Activation activation : {Activation::none, Activation::relu, Activation::silu, Activation::gelu_tanh,
                                  Activation::gelu_erf, Activation::gelu_fast}) {
      // x times the unit weight is x itself, so this is the activation's own error, far tails included.
      std::vector<float> x, y;
      for (float v = -30.0f; v <= 30.0f; v += 0.01f) x.push_back(v);
      for (float v : {-3e38f, -200.0f, -100.0f, -1e-30f, 0.0f, 1e-30f, 1e-6f, 200.0f, 3e38f}) x.push_back(v);
      y.resize(x.size());
      const float one = 1.0f;
      const auto packed = PackedWeights::pack(context, ConstTensorView(&one, DType::f32, {1, 1}));
      const auto n = std::int64_t(x.size());
      linear(context, {x.data(), DType::f32, {n, 1}}, packed, {y.data(), DType::f32, {n, 1}},
             {.activation = activation});
      for (std::size_t i = 0; i < x.size(); ++i) {
        const double e = reference::activate(x[i], activation);
        ASSERT_NEAR(y[i], e, test::tolerance(1, std::abs(double(x[i])), e, DType::f32))
            << "x " << x[i] << " activation " << int(activation);
      }
    }
  }
}

TEST(Linear, EmptyShapes) {
  Context context({.num_threads = 2});
  // No inputs gives the bias, no rows and no outputs give nothing.
  for (DType dtype : kFloats) {
    check(context, {dtype, DType::f32, DType::f32, Arithmetic::fast, 3, 2, 0, true, false, Activation::none});
    check(context, {dtype, DType::f32, DType::f32, Arithmetic::fast, 0, 5, 7, true, false, Activation::none});
    check(context, {dtype, DType::f32, DType::f32, Arithmetic::fast, 3, 0, 7, false, false, Activation::none});
    check(context, {dtype, DType::f32, DType::f32, Arithmetic::fast, 20, 40, 0, true, true, Activation::relu});
  }
}

TEST(Linear, ResidualMayBeTheOutput) {
  Context context({.num_threads = 2});
  test::Random random(5);
  Matrix x(DType::f32, 9, 40), weights(DType::f32, 50, 40), apart(DType::f32, 9, 50), out(DType::f32, 9, 50);
  const auto packed = PackedWeights::pack(context, weights.fill(random).view());
  x.fill(random);
  out.fill(random);
  linear(context, x.view(), packed, apart.view(), {.residual = out.view()});
  linear(context, x.view(), packed, out.view(), {.residual = out.view()});
  EXPECT_EQ(std::memcmp(apart.at(0, 0), out.at(0, 0), out.size_bytes()), 0);
}

// A row's bits depend neither on how many rows there are nor on the threads, here for 4097 inputs.
TEST(Linear, BitsDependOnTheRowAlone) {
  constexpr std::int64_t kRows = 130, kOutputs = 150, kInputs = 4097;
  for (Isa isa : supported_isas()) {
    if (!multiply_f32.row(isa)) continue;
    for (DType dtype : kFloats) {
      SCOPED_TRACE(testing::Message() << isa_name(isa) << " " << dtype_name(dtype));
      test::Random random(3);
      Matrix x(DType::f32, kRows, kInputs), weights(dtype, kOutputs, kInputs), whole(DType::f32, kRows, kOutputs);
      Context one({.num_threads = 1, .isa = isa});
      const auto packed = PackedWeights::pack(one, weights.fill(random).view());
      linear(one, x.fill(random).view(), packed, whole.view());
      for (int threads : {1, 2, 3}) {
        Context context({.num_threads = threads, .isa = isa});
        for (std::int64_t rows : {1, 2, 5, 16, 17, 64, 130}) {
          Matrix out(DType::f32, rows, kOutputs);
          linear(context, {x.at(kRows - rows, 0), DType::f32, {rows, kInputs}}, packed, out.view());
          ASSERT_EQ(std::memcmp(out.at(0, 0), whole.at(kRows - rows, 0), out.size_bytes()), 0)
              << rows << " rows, " << threads << " threads";
        }
      }
    }
  }
}

// Subnormal inputs.
TEST(Linear, SubnormalsAreKeptInFloat) {
  for (Isa isa : supported_isas()) {
    if (!multiply_f32.row(isa)) continue;
    Context context({.num_threads = 1, .isa = isa});
    Matrix x(DType::f32, 2, 256), weights(DType::f32, 4, 256), out(DType::f32, 2, 4);
    for (std::int64_t i = 0; i < 256; ++i) {
      for (std::int64_t r = 0; r < 2; ++r) x.set(r, i, 1e-39f);
      for (std::int64_t j = 0; j < 4; ++j) weights.set(j, i, 1.0f);
    }
    linear(context, x.view(), PackedWeights::pack(context, weights.view()), out.view());
    const double e = 256 * double(1e-39f);
    for (std::int64_t j = 0; j < 4; ++j)
      EXPECT_NEAR(out.get(1, j), e, test::tolerance(256, e, e, DType::f32)) << isa_name(isa);
  }
}

TEST(Linear, NanAndInfinityStayInTheirRow) {
  Context context({.num_threads = 1});
  test::Random random(8);
  for (DType dtype : kFloats) {
    Matrix x(DType::f32, 8, 33), weights(dtype, 20, 33), out(DType::f32, 8, 20);
    x.fill(random);
    x.set(2, 5, std::numeric_limits<float>::quiet_NaN());
    x.set(4, 32, std::numeric_limits<float>::infinity());
    linear(context, x.view(), PackedWeights::pack(context, weights.fill(random).view()), out.view(),
           {.activation = Activation::relu});
    for (std::int64_t r = 0; r < 8; ++r) {
      for (std::int64_t j = 0; j < 20; ++j) {
        if (r == 2) {
          EXPECT_TRUE(std::isnan(out.get(r, j)));
        } else {
          EXPECT_EQ(std::isfinite(out.get(r, j)), r != 4 || weights.get(j, 32) < 0) << r << " " << j;
        }
      }
    }
  }
}

}  // namespace
}  // namespace ops_transformer
