// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "ops_transformer/gemm/dequantise.h"
#include "ops_transformer/gemm/linear.h"
#include "ops_transformer/gemm/linear_reference.h"
#include "ops_transformer/gemm/quantised_linear_kernel.h"
#include "ops_transformer/gemm/quantised_reference.h"
#include "tests/support/guarded_buffer.h"
#include "tests/support/message_of.h"
#include "tests/support/random.h"
#include "tests/support/tolerance.h"

namespace ops_transformer {
namespace {

using test::GuardedBuffer;
using test::message_of;

using reference::kQuantisedTypes;

// The next number of inputs that is whole blocks.
std::int64_t whole_blocks(DType dtype, std::int64_t inputs) {
  const auto block_len = std::int64_t(dtype_info(dtype).block_len);
  return (inputs + block_len - 1) / block_len * block_len;
}

// A GGUF matrix of any codes, before a guard page.
class Weights {
 public:
  Weights(DType dtype, std::int64_t outputs, std::int64_t inputs)
      : dtype_(dtype), outputs_(outputs), inputs_(inputs), bytes_(std::size_t(outputs) * row_bytes()) {}

  Weights& fill(test::Random& random) {
    for (std::byte& b : bytes_) b = std::byte(random.integer(0, 255));
    const float typical = info().block_len == 256 ? 0.001f : 0.01f;  // of a scale; there it has a sub-scale beside it
    for (std::size_t at = 0; at < bytes_.size(); at += info().block_bytes)
      set_halves(at, random.normal(typical), random.normal(5 * typical));
    return *this;
  }
  // Every scale 1, every minimum `minimum`.
  Weights& set_scales(float minimum) {
    for (std::size_t at = 0; at < bytes_.size(); at += info().block_bytes) {
      reference::set_sub_scales_to_one(dtype_, bytes_.data() + at);
      set_halves(at, 1.0f, minimum);
    }
    return *this;
  }
  Weights& set_bytes(std::uint8_t byte) {
    std::memset(bytes_.data(), byte, bytes_.size());
    return *this;
  }
  std::vector<double> values() const {
    std::vector<double> all;
    for (std::int64_t r = 0; r < outputs_; ++r) {
      for (double v : reference::dequantise_row(dtype_, row(r), inputs_)) all.push_back(v);
    }
    return all;
  }
  const std::byte* row(std::int64_t r) const { return bytes_.data() + std::size_t(r) * row_bytes(); }
  std::size_t size_bytes() const { return bytes_.size(); }
  ConstTensorView view() const { return {bytes_.data(), dtype_, {outputs_, inputs_}}; }

 private:
  const DTypeInfo& info() const { return dtype_info(dtype_); }
  std::size_t row_bytes() const { return std::size_t(inputs_) / info().block_len * info().block_bytes; }
  void set_halves(std::size_t block, float scale, float minimum) {
    const auto [scale_at, minimum_at] = reference::halves_of_block(dtype_);
    const Float16 halves[2] = {to_float16(scale), to_float16(minimum)};
    std::memcpy(bytes_.data() + block + scale_at, halves, 2);
    if (minimum_at >= 0) std::memcpy(bytes_.data() + block + minimum_at, halves + 1, 2);
  }
  DType dtype_;
  std::int64_t outputs_, inputs_;
  GuardedBuffer<std::byte> bytes_;
};

// A context for each level that has int8 kernels of its own.
template <class Check>
void at_every_level(int num_threads, const Check& check) {
  for (Isa isa : supported_isas()) {
    if (!multiply_q4_1.row(isa)) continue;
    SCOPED_TRACE(isa_name(isa));
    Context context({.num_threads = num_threads, .isa = isa});
    check(context);
  }
}

std::vector<float> run(Context& context, const PackedWeights& packed, const std::vector<float>& x, std::int64_t rows,
                       const LinearOptions& options = {}) {
  const std::int64_t inputs = packed.num_inputs(), outputs = packed.num_outputs();
  GuardedBuffer<float> in(x.size()), out(std::size_t(rows * outputs));
  std::copy(x.begin(), x.end(), in.begin());
  linear(context, {in.data(), DType::f32, {rows, inputs}}, packed, {out.data(), DType::f32, {rows, outputs}}, options);
  return {out.begin(), out.end()};
}

struct Case {
  DType weights, x, out;
  Arithmetic arithmetic;
  std::int64_t rows, outputs, inputs;
  bool bias = false, residual = false;
  Activation activation = Activation::none;
};

template <class T>
void check_typed(Context& context, const Case& c) {
  test::Random random(std::uint64_t(c.rows * 1000003 + c.outputs * 1009 + c.inputs));
  Weights weights(c.weights, c.outputs, c.inputs);
  weights.fill(random);
  const std::int64_t x_stride = c.inputs + 3, out_stride = c.outputs + 2;
  GuardedBuffer<T> x(std::size_t((c.rows - 1) * x_stride + c.inputs));
  GuardedBuffer<float> out(std::size_t((c.rows - 1) * out_stride + c.outputs)), bias(std::size_t(c.outputs)),
      residual(std::size_t(c.rows * c.outputs));
  test::fill_normal(x, random);
  test::fill_normal(bias, random);
  test::fill_normal(residual, random);
  LinearOptions options{.activation = c.activation, .arithmetic = c.arithmetic};
  if (c.bias) options.bias = ConstTensorView(bias.data(), DType::f32, {c.outputs});
  if (c.residual) options.residual = ConstTensorView(residual.data(), DType::f32, {c.rows, c.outputs});
  const auto packed = PackedWeights::pack(context, weights.view());
  linear(context, {x.data(), c.x, {c.rows, c.inputs}, {x_stride, 1}}, packed,
         {out.data(), DType::f32, {c.rows, c.outputs}, {out_stride, 1}}, options);
  const auto values = weights.values();
  for (std::int64_t r = 0; r < c.rows; ++r) {
    std::vector<float> row;
    for (std::int64_t i = 0; i < c.inputs; ++i) row.push_back(to_float(x[std::size_t(r * x_stride + i)]));
    const std::vector<double> exact(row.begin(), row.end());
    const auto same_input = c.arithmetic == Arithmetic::fast ? reference::values(reference::quantise_row(row)) : exact;
    std::vector<double> bias_row, residual_row;
    if (c.bias) bias_row.assign(bias.begin(), bias.end());
    if (c.residual) residual_row.assign(residual.begin() + r * c.outputs, residual.begin() + (r + 1) * c.outputs);
    const auto expected = reference::linear(same_input, values, bias_row, c.activation, residual_row);
    for (std::int64_t j = 0; j < c.outputs; ++j) {
      const double e = expected.value[std::size_t(j)];
      ASSERT_NEAR(out[std::size_t(r * out_stride + j)], e,
                  test::tolerance(double(c.inputs + 2), expected.magnitude[std::size_t(j)], e, DType::f32))
          << "row " << r << " output " << j;
    }
    for (std::int64_t j = c.outputs; j < out_stride && r + 1 < c.rows; ++j)
      ASSERT_TRUE(std::isnan(out[std::size_t(r * out_stride + j)]));
  }
}

void check(Context& context, const Case& c) {
  SCOPED_TRACE(testing::Message() << dtype_name(c.weights) << " x " << dtype_name(c.x) << " exact "
                                  << int(c.arithmetic == Arithmetic::exact) << " M " << c.rows << " N " << c.outputs
                                  << " K " << c.inputs);
  if (c.x == DType::f32) check_typed<float>(context, c);
  if (c.x == DType::bf16) check_typed<BFloat16>(context, c);
  if (c.x == DType::f16) check_typed<Float16>(context, c);
}

// Against float64 on the same input: quantised for `fast`, as it is for `exact`.
TEST(QuantisedLinear, MatchesReferenceAtEveryLevel) {
  at_every_level(2, [](Context& context) {
    for (DType weights : kQuantisedTypes) {
      for (Arithmetic arithmetic : {Arithmetic::fast, Arithmetic::exact}) {
        for (DType x : {DType::f32, DType::bf16, DType::f16})
          check(context,
                {weights, x, DType::f32, arithmetic, 5, 35, whole_blocks(weights, 96), true, true, Activation::silu});
        for (std::int64_t rows : {1, 2, 3, 4, 6, 16, 17, 35}) {
          for (std::int64_t outputs : {1, 16, 17, 33, 48, 70, 129})
            check(context, {weights, DType::f32, DType::f32, arithmetic, rows, outputs,
                            whole_blocks(weights, rows % 2 ? 64 : 96)});
        }
        for (std::int64_t inputs : {32, 64, 160, 576, 1536})
          check(context, {weights, DType::f32, DType::f32, arithmetic, 6, 50, whole_blocks(weights, inputs)});
      }
    }
  });
}

// Rounding the input to int8 moves each element by at most half a step (and what f32 loses on the way).
TEST(QuantisedLinear, ErrorAgainstUnroundedInputIsBounded) {
  test::Random random(4);
  constexpr std::int64_t kRows = 4, kOutputs = 24, kInputs = 256;
  std::vector<float> x(kRows * kInputs);
  test::fill_normal(x, random);
  for (DType dtype : kQuantisedTypes) {
    Weights weights(dtype, kOutputs, kInputs);
    const auto values = weights.fill(random).values();
    Context context({.num_threads = 1});
    const auto out = run(context, PackedWeights::pack(context, weights.view()), x, kRows);
    for (std::int64_t r = 0; r < kRows; ++r) {
      const std::vector<float> row(x.begin() + r * kInputs, x.begin() + (r + 1) * kInputs);
      const auto scales = reference::quantise_row(row).scales;
      const auto exact = reference::linear({row.begin(), row.end()}, values, {}, Activation::none, {});
      for (std::int64_t j = 0; j < kOutputs; ++j) {
        double bound =
            test::tolerance(kInputs, exact.magnitude[std::size_t(j)], exact.value[std::size_t(j)], DType::f32);
        for (std::int64_t i = 0; i < kInputs; ++i)
          bound += 0.5001 * std::abs(values[std::size_t(j * kInputs + i)]) * scales[std::size_t(i / 32)];
        EXPECT_NEAR(out[std::size_t(r * kOutputs + j)], exact.value[std::size_t(j)], bound);
      }
    }
  }
}

// Saturation, too: with scales of 1 every sum is an integer that f32 holds, so each level must give exactly it.
TEST(QuantisedLinear, IntegerSumsAreExactAtTheExtremes) {
  constexpr std::int64_t kOutputs = 20, kRows = 6;
  at_every_level(1, [](Context& context) {
    for (DType dtype : kQuantisedTypes) {
      const std::int64_t inputs = whole_blocks(dtype, 96);
      test::Random random(9);
      for (int pattern = 0; pattern < 5; ++pattern) {
        Weights weights(dtype, kOutputs, inputs);
        weights.fill(random);
        if (pattern < 4)
          weights.set_bytes(std::uint8_t(pattern == 0 ? 0xff : pattern == 1 ? 0x80 : pattern == 2 ? 0x7f : 0));
        weights.set_scales(-8.0f);
        std::vector<float> x(kRows * inputs);
        for (std::size_t i = 0; i < x.size(); ++i) {
          const bool first_row = i < std::size_t(inputs), second_row = !first_row && i < std::size_t(2 * inputs);
          x[i] = first_row ? 127.0f : second_row ? -127.0f : i % 32 == 0 ? 127.0f : float(random.integer(-127, 127));
        }
        const auto out = run(context, PackedWeights::pack(context, weights.view()), x, kRows);
        for (std::int64_t r = 0; r < kRows; ++r) {
          const auto expected = reference::linear({x.begin() + r * inputs, x.begin() + (r + 1) * inputs},
                                                  weights.values(), {}, Activation::none, {});
          for (std::int64_t j = 0; j < kOutputs; ++j) {
            ASSERT_EQ(out[std::size_t(r * kOutputs + j)], expected.value[std::size_t(j)])
                << dtype_name(dtype) << " pattern " << pattern << " row " << r << " output " << j;
          }
        }
      }
    }
  });
}

// A row's bits depend neither on how many rows there are nor on the threads; and all levels with FMA give the same.
TEST(QuantisedLinear, BitsDependOnTheRowAlone) {
  constexpr std::int64_t kRows = 130, kOutputs = 150;
  test::Random random(3);
  for (DType dtype : kQuantisedTypes) {
    const std::int64_t inputs = whole_blocks(dtype, 576);
    std::vector<float> x(std::size_t(kRows * inputs));
    test::fill_normal(x, random);
    Weights weights(dtype, kOutputs, inputs);
    weights.fill(random);
    for (Arithmetic arithmetic : {Arithmetic::fast, Arithmetic::exact}) {
      std::vector<float> with_fma;
      at_every_level(1, [&](Context& one) {
        SCOPED_TRACE(testing::Message() << dtype_name(dtype) << " exact " << int(arithmetic == Arithmetic::exact));
        const auto packed = PackedWeights::pack(one, weights.view());
        const LinearOptions options{.arithmetic = arithmetic};
        const auto whole = run(one, packed, x, kRows, options);
        for (int threads : {1, 2, 3}) {
          Context context({.num_threads = threads, .isa = one.isa()});
          for (std::int64_t rows : {1, 2, 3, 5, 16, 17, 64, 130}) {
            const auto some = run(context, packed, {x.end() - rows * inputs, x.end()}, rows, options);
            ASSERT_EQ(std::memcmp(some.data(), whole.data() + (kRows - rows) * kOutputs, some.size() * sizeof(float)),
                      0)
                << rows << " rows, " << threads << " threads";
          }
        }
        if (one.isa() == Isa::generic) return;
        if (with_fma.empty()) with_fma = whole;
        ASSERT_EQ(std::memcmp(with_fma.data(), whole.data(), whole.size() * sizeof(float)), 0);
      });
    }
  }
}

TEST(QuantisedLinear, NanStaysInItsRow) {
  test::Random random(8);
  at_every_level(1, [&](Context& context) {
    for (DType dtype : kQuantisedTypes) {
      for (Arithmetic arithmetic : {Arithmetic::fast, Arithmetic::exact}) {
        Weights weights(dtype, 20, 256);
        const auto packed = PackedWeights::pack(context, weights.fill(random).view());
        std::vector<float> x(6 * 256);
        test::fill_normal(x, random);
        const auto clean = run(context, packed, x, 6, {.arithmetic = arithmetic});
        x[2 * 256 + 40] = std::numeric_limits<float>::quiet_NaN();
        const auto out = run(context, packed, x, 6, {.arithmetic = arithmetic});
        for (std::size_t i = 0; i < out.size(); ++i) {
          if (i / 20 == 2) {
            ASSERT_TRUE(std::isnan(out[i]));
          } else {
            ASSERT_EQ(out[i], clean[i]);
          }
        }
      }
    }
  });
}

TEST(QuantisedLinear, ZeroRowsGiveZeros) {
  test::Random random(2);
  Context context({.num_threads = 1});
  for (DType dtype : kQuantisedTypes) {
    Weights weights(dtype, 17, 256);
    const auto packed = PackedWeights::pack(context, weights.fill(random).view());
    for (float y : run(context, packed, std::vector<float>(3 * 256, 0.0f), 3)) EXPECT_EQ(y, 0.0f);
  }
}

// No inputs gives the bias, no rows and no outputs give nothing.
TEST(QuantisedLinear, EmptyShapes) {
  at_every_level(2, [](Context& context) {
    const float bias[2] = {1, 2};
    for (DType dtype : kQuantisedTypes) {
      for (Arithmetic arithmetic : {Arithmetic::fast, Arithmetic::exact}) {
        const LinearOptions options{.bias = ConstTensorView(bias, DType::f32, {2}), .arithmetic = arithmetic};
        const auto no_inputs = PackedWeights::pack(context, ConstTensorView(nullptr, dtype, {2, 0}));
        EXPECT_EQ(run(context, no_inputs, {}, 3, options), (std::vector<float>{1, 2, 1, 2, 1, 2}));
        const auto no_outputs = PackedWeights::pack(context, ConstTensorView(nullptr, dtype, {0, 256}));
        EXPECT_TRUE(run(context, no_outputs, std::vector<float>(256), 2).empty());
        EXPECT_TRUE(run(context, no_outputs, {}, 0).empty());
      }
    }
  });
}

TEST(QuantisedLinear, StackedPartsAreTheMatricesSideBySide) {
  test::Random random(6);
  Context context({.num_threads = 2});
  std::vector<float> x(2 * 256);
  test::fill_normal(x, random);
  for (DType dtype : kQuantisedTypes) {
    Weights a(dtype, 32, 256), b(dtype, 16, 256), c(dtype, 19, 256);
    const ConstTensorView parts[] = {a.fill(random).view(), b.fill(random).view(), c.fill(random).view()};
    const auto stacked = PackedWeights::pack(context, parts);
    // The file's bit widths are kept, though six bits of a sub-scale take a byte; the last tile has outputs too many.
    const std::size_t of_file = (a.size_bytes() + b.size_bytes()) + c.size_bytes() / 19 * 32;
    EXPECT_GE(stacked.bytes(), of_file);
    EXPECT_LE(double(stacked.bytes()), 1.1 * double(of_file)) << dtype_name(dtype);
    const auto out = run(context, stacked, x, 2);
    for (std::int64_t r = 0; r < 2; ++r) {
      std::int64_t first = 0;
      for (const ConstTensorView& part : parts) {
        const auto alone =
            run(context, PackedWeights::pack(context, part), {x.begin() + r * 256, x.begin() + r * 256 + 256}, 1);
        for (std::size_t j = 0; j < alone.size(); ++j) EXPECT_EQ(out[std::size_t(r * 67 + first) + j], alone[j]);
        first += part.size(0);
      }
    }
  }
}

TEST(QuantisedLinear, RowsMustBeWholeBlocks) {
  Context context({.num_threads = 1});
  std::vector<std::byte> bytes(4096);
  try {
    PackedWeights::pack(context, ConstTensorView(bytes.data(), DType::q4_1, {2, 48}));
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("multiples of 32"), std::string::npos) << error.what();
  }
}

TEST(DequantiseRows, IsTheDefinitionRoundedOnce) {
  test::Random random(1);
  for (DType dtype : kQuantisedTypes) {
    Weights weights(dtype, 3, 768);
    const auto expected = weights.fill(random).values();
    GuardedBuffer<float> out(expected.size());
    dequantise_rows(dtype, weights.row(0), std::int64_t(out.size()), out.data());
    for (std::size_t i = 0; i < out.size(); ++i) ASSERT_EQ(out[i], float(expected[i])) << dtype_name(dtype) << " " << i;
  }
}

TEST(DequantiseRows, FloatsAreWidened) {
  const float x[3] = {1.5f, -2.0f, 0x1p-130f};
  const BFloat16 b[3] = {to_bfloat16(1.5f), to_bfloat16(-2.0f), to_bfloat16(3e38f)};
  const Float16 h[3] = {to_float16(1.5f), to_float16(-2.0f), to_float16(1e-6f)};
  float out[3];
  dequantise_rows(DType::f32, x, 3, out);
  EXPECT_EQ(std::memcmp(x, out, sizeof x), 0);
  dequantise_rows(DType::bf16, b, 3, out);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(out[i], to_float(b[i]));
  dequantise_rows(DType::f16, h, 3, out);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(out[i], to_float(h[i]));
}

TEST(DequantiseRows, ErrorsNameTheArgument) {
  float out[64];
  const auto message = [&](DType dtype, std::int64_t n) -> std::string {
    const std::vector<std::byte> bytes(512);
    return message_of([&] { dequantise_rows(dtype, bytes.data(), n, out); });
  };
  EXPECT_EQ(message(DType::q4_0, 33), "dequantise_rows: num_elements is 33, must be a multiple of 32 for q4_0");
  EXPECT_EQ(message(DType::f32, -1), "dequantise_rows: num_elements is -1, must be a multiple of 1 for f32");
  EXPECT_EQ(message(DType::q6_k, 32), "dequantise_rows: num_elements is 32, must be a multiple of 256 for q6_k");
  EXPECT_EQ(message(DType::i32, 4), "dequantise_rows: dtype is i32, must be f32, bf16, f16 or block-quantised");
}

}  // namespace
}  // namespace ops_transformer
