// SPDX-License-Identifier: Apache-2.0
// linear over s8, u8 and s4 weights.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "ops_transformer/gemm/integer_kernel.h"
#include "ops_transformer/gemm/integer_reference.h"
#include "ops_transformer/gemm/linear.h"
#include "ops_transformer/gemm/linear_reference.h"
#include "tests/support/dtype_of.h"
#include "tests/support/guarded_buffer.h"
#include "tests/support/message_of.h"
#include "tests/support/random.h"
#include "tests/support/tolerance.h"

namespace ops_transformer {
namespace {

using test::GuardedBuffer;
using test::message_of;

constexpr DType kIntegers[] = {DType::s8, DType::u8, DType::s4};

int lowest(DType dtype) { return dtype == DType::s8 ? -128 : dtype == DType::s4 ? -8 : 0; }
int highest(DType dtype) { return dtype == DType::s8 ? 127 : dtype == DType::s4 ? 7 : 255; }

template <class Body>
void at_every_level(int num_threads, const Body& body) {
  for (Isa isa : supported_isas()) {
    SCOPED_TRACE(isa_name(isa));
    Context context({.num_threads = num_threads, .isa = isa});
    body(context);
    if (testing::Test::HasFatalFailure()) return;
  }
}

// A matrix of codes before a guard page, with the scales and zeros of its groups.
class IntegerMatrix {
 public:
  IntegerMatrix(DType dtype, std::int64_t outputs, std::int64_t inputs)
      : dtype_(dtype),
        outputs_(outputs),
        inputs_(inputs),
        bytes_(std::size_t(outputs) * row_bytes()),
        codes_(std::size_t(outputs * inputs)) {}

  IntegerMatrix& fill(test::Random& random) {
    for (int& code : codes_) code = int(random.integer(lowest(dtype_), highest(dtype_)));
    return store();
  }
  IntegerMatrix& set(const std::vector<int>& codes) {
    codes_ = codes;
    return store();
  }
  IntegerMatrix& scale(test::Random& random, std::int64_t group_len, DType scales, bool zeros) {
    group_len_ = group_len;
    scale_dtype_ = scales;
    const std::int64_t n = outputs_ * num_groups();
    scale_values_.clear();
    zero_values_.clear();
    scale_bytes_.resize(std::size_t(n) * element_bytes(scales));
    for (std::int64_t i = 0; i < n; ++i) {
      const float value = random.uniform(-0.01f, 0.02f);
      const BFloat16 b = to_bfloat16(value);
      const Float16 h = to_float16(value);
      const void* source = scales == DType::f32    ? static_cast<const void*>(&value)
                           : scales == DType::bf16 ? &b.bits
                                                   : &h.bits;
      std::memcpy(scale_bytes_.data() + std::size_t(i) * element_bytes(scales), source, element_bytes(scales));
      scale_values_.push_back(scales == DType::f32 ? value : scales == DType::bf16 ? to_float(b) : to_float(h));
      zero_values_.push_back(zeros ? std::int8_t(random.integer(lowest(dtype_), highest(dtype_))) : std::int8_t(0));
    }
    has_zeros_ = zeros;
    return *this;
  }
  PackedWeights pack(Context& context) const {
    IntegerWeightOptions options{.group_len = group_len_};
    if (!scale_bytes_.empty())
      options.scales = ConstTensorView(scale_bytes_.data(), scale_dtype_, {outputs_, num_groups()});
    if (has_zeros_)
      options.zeros =
          ConstTensorView(zero_values_.data(), dtype_ == DType::u8 ? DType::u8 : DType::s8, {outputs_, num_groups()});
    return PackedWeights::pack_integers(context, view(), options);
  }
  std::vector<double> values() const {
    std::vector<double> all;
    for (std::int64_t i = 0; i < outputs_ * inputs_; ++i) {
      const auto group = std::size_t(i / inputs_ * num_groups() + (group_len_ ? i % inputs_ / group_len_ : 0));
      const int zero = !has_zeros_           ? 0
                       : dtype_ == DType::u8 ? int(std::uint8_t(zero_values_[group]))
                                             : zero_values_[group];
      const double scale = scale_bytes_.empty() ? 1.0 : double(scale_values_[group]);
      all.push_back(scale * (codes_[std::size_t(i)] - zero));
    }
    return all;
  }
  const std::vector<int>& codes() const { return codes_; }
  ConstTensorView view() const { return {bytes_.data(), dtype_, {outputs_, inputs_}}; }
  std::size_t source_bytes() const {
    return bytes_.size() + scale_bytes_.size() + (has_zeros_ ? zero_values_.size() : 0);
  }

 private:
  std::size_t row_bytes() const { return std::size_t(dtype_ == DType::s4 ? (inputs_ + 1) / 2 : inputs_); }
  std::int64_t num_groups() const { return group_len_ ? inputs_ / group_len_ : 1; }
  IntegerMatrix& store() {
    std::memset(bytes_.data(), 0, bytes_.size());
    for (std::int64_t r = 0; r < outputs_; ++r) {
      for (std::int64_t i = 0; i < inputs_; ++i) {
        const int code = codes_[std::size_t(r * inputs_ + i)];
        std::byte* row = bytes_.data() + std::size_t(r) * row_bytes();
        if (dtype_ == DType::s4) {
          row[i / 2] |= std::byte((code & 15) << i % 2 * 4);
        } else {
          row[i] = std::byte(code);
        }
      }
    }
    return *this;
  }
  DType dtype_, scale_dtype_ = DType::f32;
  std::int64_t outputs_, inputs_, group_len_ = 0;
  bool has_zeros_ = false;
  GuardedBuffer<std::byte> bytes_;
  std::vector<int> codes_;
  std::vector<std::byte> scale_bytes_;
  std::vector<float> scale_values_;
  std::vector<std::int8_t> zero_values_;
};

struct Case {
  DType weights;
  std::int64_t group_len;
  DType scales = DType::f32;
  bool zeros = false;
  Arithmetic arithmetic = Arithmetic::fast;
  std::int64_t rows = 5, outputs = 35, inputs = 256;
  float x_scale = 0;  // given where not 0
  bool epilogue = false;
};

template <class T>
void check(Context& context, const Case& c) {
  SCOPED_TRACE(testing::Message() << dtype_name(c.weights) << " groups of " << c.group_len << " scales "
                                  << dtype_name(c.scales) << " zeros " << c.zeros << " exact "
                                  << int(c.arithmetic == Arithmetic::exact) << " M " << c.rows << " N " << c.outputs
                                  << " K " << c.inputs << " x scale " << c.x_scale);
  test::Random random(std::uint64_t(c.rows * 1000003 + c.outputs * 1009 + c.inputs));
  IntegerMatrix weights(c.weights, c.outputs, c.inputs);
  weights.fill(random).scale(random, c.group_len, c.scales, c.zeros);
  const std::int64_t x_stride = c.inputs + 3, out_stride = c.outputs + 2;
  GuardedBuffer<T> x(std::size_t((c.rows - 1) * x_stride + c.inputs));
  GuardedBuffer<float> out(std::size_t((c.rows - 1) * out_stride + c.outputs)), bias(std::size_t(c.outputs)),
      residual(std::size_t(c.rows * c.outputs)), row_scales(std::size_t(c.rows));
  test::fill_normal(x, random);
  test::fill_normal(bias, random);
  test::fill_normal(residual, random);
  test::fill_normal(row_scales, random);
  LinearOptions options{.arithmetic = c.arithmetic};
  if (c.x_scale != 0) options.x_scales = ConstTensorView(&c.x_scale, DType::f32, {1});
  if (c.epilogue) {
    options.bias = ConstTensorView(bias.data(), DType::f32, {c.outputs});
    options.residual = ConstTensorView(residual.data(), DType::f32, {c.rows, c.outputs});
    options.row_scales = ConstTensorView(row_scales.data(), DType::f32, {c.rows});
    options.activation = Activation::silu;
  }
  linear(context, {x.data(), test::kDType<T>, {c.rows, c.inputs}, {x_stride, 1}}, weights.pack(context),
         {out.data(), DType::f32, {c.rows, c.outputs}, {out_stride, 1}}, options);
  const auto values = weights.values();
  for (std::int64_t r = 0; r < c.rows; ++r) {
    std::vector<float> row;
    for (std::int64_t i = 0; i < c.inputs; ++i) row.push_back(to_float(x[std::size_t(r * x_stride + i)]));
    const auto input = c.arithmetic == Arithmetic::fast ? reference::rounded_to_int8(row, c.group_len, c.x_scale)
                                                        : std::vector<double>(row.begin(), row.end());
    auto expected = reference::linear(
        input, values, c.epilogue ? std::vector<double>(bias.begin(), bias.end()) : std::vector<double>{},
        c.epilogue ? Activation::silu : Activation::none, {});
    for (std::int64_t j = 0; j < c.outputs; ++j) {
      double e = expected.value[std::size_t(j)], magnitude = expected.magnitude[std::size_t(j)];
      if (c.epilogue) {
        const double scale = row_scales[std::size_t(r)], added = residual[std::size_t(r * c.outputs + j)];
        e = e * scale + added;
        magnitude = magnitude * std::abs(scale) + std::abs(added);
      }
      ASSERT_NEAR(out[std::size_t(r * out_stride + j)], e,
                  test::tolerance(double(c.inputs + 2), magnitude, e, DType::f32))
          << "row " << r << " output " << j;
    }
    for (std::int64_t j = c.outputs; j < out_stride && r + 1 < c.rows; ++j)
      ASSERT_TRUE(std::isnan(out[std::size_t(r * out_stride + j)]));
  }
}

TEST(IntegerLinear, MatchesReferenceAtEveryLevel) {
  at_every_level(2, [](Context& context) {
    for (DType weights : kIntegers) {
      for (Arithmetic arithmetic : {Arithmetic::fast, Arithmetic::exact}) {
        for (std::int64_t group_len : {0, 32, 64, 128, 256}) {
          for (DType scales : {DType::f32, DType::bf16, DType::f16}) {
            for (bool zeros : {false, true}) {
              check<float>(context, {weights, group_len, scales, zeros, arithmetic, 5, 35, 512});
              check<float>(context, {.weights = weights,
                                     .group_len = group_len,
                                     .scales = scales,
                                     .zeros = zeros,
                                     .arithmetic = arithmetic,
                                     .rows = 3,
                                     .epilogue = true});
            }
          }
          check<BFloat16>(context, {.weights = weights, .group_len = group_len, .arithmetic = arithmetic});
          check<Float16>(context, {.weights = weights, .group_len = group_len, .arithmetic = arithmetic});
          for (std::int64_t rows : {1, 6, 17, 70}) {
            for (std::int64_t outputs : {1, 33, 129})
              check<float>(context, {weights, group_len, DType::f32, rows % 2 == 0, arithmetic, rows, outputs, 256});
          }
        }
        for (std::int64_t inputs : {2, 6, 34, 66, 130, 1030})
          check<float>(context, {weights, 0, DType::f32, true, arithmetic, 7, 40, inputs});
      }
      if (weights != DType::s4) {
        for (std::int64_t inputs : {1, 3, 5, 65, 577})
          check<float>(context, {weights, 0, DType::f32, false, Arithmetic::fast, 7, 40, inputs});
      }
      check<float>(context, {.weights = weights, .group_len = 0, .x_scale = 0.02f});
      check<float>(context, {.weights = weights, .group_len = 64, .x_scale = 0.01f});
    }
  });
}

// Runs x of bytes by weights to integers.
template <class T>
std::vector<std::int32_t> products(Context& context, const std::vector<int>& a, std::int64_t rows, int a_zero,
                                   const PackedWeights& weights) {
  GuardedBuffer<T> x(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) x[i] = T(a[i]);
  GuardedBuffer<std::int32_t> out(std::size_t(rows * weights.num_outputs()));
  linear(context, {x.data(), std::is_signed_v<T> ? DType::s8 : DType::u8, {rows, weights.num_inputs()}}, weights,
         {out.data(), DType::i32, {rows, weights.num_outputs()}}, {.x_zero = a_zero});
  return {out.begin(), out.end()};
}

// Integers are the same at every level, for every code there is.
TEST(IntegerLinear, IntegerSumsAreExactAtEveryLevel) {
  at_every_level(2, [](Context& context) {
    test::Random random(5);
    for (DType dtype : kIntegers) {
      for (bool x_signed : {true, false}) {
        for (const auto& [rows, outputs, inputs] : std::vector<std::array<std::int64_t, 3>>{
                 {5, 7, 65 + (dtype == DType::s4)}, {1, 1, 2}, {40, 70, 258}, {70, 35, 4098}}) {
          for (int pattern = 0; pattern < 3; ++pattern) {
            const int low = x_signed ? -128 : 0;
            std::vector<int> a(std::size_t(rows * inputs)), b(std::size_t(outputs * inputs));
            for (int& v : a) v = pattern == 0 ? int(random.integer(low, low + 255)) : pattern == 1 ? low : low + 255;
            for (int& v : b)
              v = pattern == 0   ? int(random.integer(lowest(dtype), highest(dtype)))
                  : pattern == 1 ? lowest(dtype)
                                 : highest(dtype);
            const int zero = pattern == 2 ? 0 : int(random.integer(low, low + 255));
            IntegerMatrix weights(dtype, outputs, inputs);
            const auto packed = PackedWeights::pack(context, weights.set(b).view());
            const auto got = x_signed ? products<std::int8_t>(context, a, rows, zero, packed)
                                      : products<std::uint8_t>(context, a, rows, zero, packed);
            for (std::int64_t r = 0; r < rows; ++r) {
              const auto expected =
                  reference::integer_products({a.begin() + r * inputs, a.begin() + (r + 1) * inputs}, zero, b, 0);
              for (std::int64_t j = 0; j < outputs; ++j)
                ASSERT_EQ(got[std::size_t(r * outputs + j)], expected[std::size_t(j)])
                    << dtype_name(dtype) << " row " << r << " output " << j << " pattern " << pattern;
            }
          }
        }
      }
    }
  });
}

// Zeros of both sides.
TEST(IntegerLinear, ZeroPoints) {
  at_every_level(1, [](Context& context) {
    const std::vector<int> a = {238, 115, 94, 245, 111, 102, 158, 225, 48};
    const std::vector<std::int8_t> b = {25, 42, -81, 36, -123, -86, 125, 76, 35};  // the transpose of the case's
    const std::vector<std::int8_t> zeros(3, -26);
    const auto packed = PackedWeights::pack_integers(context, ConstTensorView(b.data(), DType::s8, {3, 3}),
                                                     {.zeros = ConstTensorView(zeros.data(), DType::s8, {3, 1})});
    EXPECT_EQ(products<std::uint8_t>(context, a, 3, 42, packed),
              (std::vector<std::int32_t>{12100, 1951, 40214, 11745, 2293, 41351, 18030, -10919, 36548}));
  });
}

TEST(IntegerLinear, CodesOfXStandForScaledValues) {
  at_every_level(2, [](Context& context) {
    test::Random random(31);
    constexpr std::int64_t kRows = 9, kOutputs = 21, kInputs = 128;
    for (DType dtype : {DType::s8, DType::s4, DType::bf16, DType::f32, DType::q8_0}) {
      for (bool per_row : {false, true}) {
        for (std::int64_t group_len : {0, 64}) {
          if (group_len && !(dtype == DType::s8 || dtype == DType::s4)) continue;
          for (DType x_dtype : {DType::s8, DType::u8}) {
            if (group_len && x_dtype == DType::u8) continue;
            SCOPED_TRACE(testing::Message() << dtype_name(dtype) << " " << dtype_name(x_dtype) << " " << group_len);
            const bool integers = dtype == DType::s8 || dtype == DType::s4;
            GuardedBuffer<std::uint8_t> x(kRows * kInputs);
            for (auto& code : x) code = std::uint8_t(random.integer(0, 255));
            std::vector<float> scales;
            for (int r = 0; r < (per_row ? kRows : 1); ++r) scales.push_back(random.uniform(0.001f, 0.1f));
            const int zero = group_len ? 0 : x_dtype == DType::s8 ? -7 : 131;
            LinearOptions options{.arithmetic = dtype == DType::q8_0 ? Arithmetic::exact : Arithmetic::fast};
            options.x_scales = ConstTensorView(scales.data(), DType::f32, {std::int64_t(scales.size())});
            options.x_zero = zero;
            IntegerMatrix matrix(integers ? dtype : DType::s8, kOutputs, kInputs);
            std::vector<double> values;
            PackedWeights packed;
            std::vector<std::byte> floats(kOutputs * kInputs * 4);
            if (integers) {
              packed = matrix.fill(random).scale(random, group_len, DType::f32, group_len == 0).pack(context);
              values = matrix.values();
            } else {
              for (std::size_t i = 0; dtype != DType::q8_0 && i < kOutputs * kInputs; ++i) {
                const float f = random.normal();
                const BFloat16 b = to_bfloat16(f);
                if (dtype == DType::f32) std::memcpy(floats.data() + 4 * i, &f, 4);
                if (dtype == DType::bf16) std::memcpy(floats.data() + 2 * i, &b, 2);
                values.push_back(dtype == DType::f32 ? f : to_float(b));
              }
              values.resize(kOutputs * kInputs);  // q8_0: zeros
              packed = PackedWeights::pack(context, ConstTensorView(floats.data(), dtype, {kOutputs, kInputs}));
            }
            GuardedBuffer<float> out(kRows * kOutputs);
            linear(context, {x.data(), x_dtype, {kRows, kInputs}}, packed, {out.data(), DType::f32, {kRows, kOutputs}},
                   options);
            for (std::int64_t r = 0; r < kRows; ++r) {
              std::vector<double> row;
              for (std::int64_t i = 0; i < kInputs; ++i) {
                const std::uint8_t code = x[std::size_t(r * kInputs + i)];
                float value = scales[per_row ? std::size_t(r) : 0] *
                              float((x_dtype == DType::s8 ? int(std::int8_t(code)) : int(code)) - zero);
                if (dtype == DType::bf16) value = to_float(to_bfloat16(value));
                row.push_back(value);
              }
              const auto expected = reference::linear(row, values, {}, Activation::none, {});
              for (std::int64_t j = 0; j < kOutputs; ++j)
                ASSERT_NEAR(out[std::size_t(r * kOutputs + j)], expected.value[std::size_t(j)],
                            test::tolerance(kInputs, expected.magnitude[std::size_t(j)], expected.value[std::size_t(j)],
                                            DType::f32));
            }
          }
        }
      }
    }
  });
}

TEST(IntegerLinear, BitsDependOnTheRowAlone) {
  constexpr std::int64_t kRows = 130, kOutputs = 150, kInputs = 1024;
  test::Random random(3);
  std::vector<float> x(kRows * kInputs);
  test::fill_normal(x, random);
  for (DType dtype : kIntegers) {
    for (std::int64_t group_len : {0, 128}) {
      IntegerMatrix weights(dtype, kOutputs, kInputs);
      weights.fill(random).scale(random, group_len, DType::f32, true);
      std::vector<float> with_fma;
      at_every_level(1, [&](Context& one) {
        const auto packed = weights.pack(one);
        std::vector<float> whole(kRows * kOutputs);
        linear(one, {x.data(), DType::f32, {kRows, kInputs}}, packed, {whole.data(), DType::f32, {kRows, kOutputs}});
        for (int threads : {1, 3}) {
          Context context({.num_threads = threads, .isa = one.isa()});
          for (std::int64_t rows : {1, 2, 5, 16, 64, 130}) {
            std::vector<float> some(std::size_t(rows * kOutputs));
            linear(context, {x.data() + (kRows - rows) * kInputs, DType::f32, {rows, kInputs}}, packed,
                   {some.data(), DType::f32, {rows, kOutputs}});
            ASSERT_EQ(std::memcmp(some.data(), whole.data() + (kRows - rows) * kOutputs, some.size() * 4), 0) << rows;
          }
        }
        if (one.isa() == Isa::generic) return;
        if (with_fma.empty()) with_fma = whole;
        ASSERT_EQ(std::memcmp(with_fma.data(), whole.data(), whole.size() * 4), 0);
      });
    }
  }
}

TEST(IntegerLinear, NanStaysInItsRowAndZerosGiveZeros) {
  at_every_level(1, [](Context& context) {
    test::Random random(8);
    for (std::int64_t group_len : {0, 64}) {
      IntegerMatrix weights(DType::s8, 20, 128);
      const auto packed = weights.fill(random).scale(random, group_len, DType::f32, true).pack(context);
      std::vector<float> x(4 * 128), out(4 * 20);
      test::fill_normal(x, random);
      x[128 + 70] = std::numeric_limits<float>::quiet_NaN();
      x[2 * 128 + 3] = std::numeric_limits<float>::infinity();
      std::fill(x.begin() + 3 * 128, x.end(), 0.0f);
      linear(context, {x.data(), DType::f32, {4, 128}}, packed, {out.data(), DType::f32, {4, 20}});
      for (int j = 0; j < 20; ++j) {
        EXPECT_TRUE(std::isfinite(out[std::size_t(j)]));
        EXPECT_TRUE(std::isnan(out[std::size_t(20 + j)]));
        EXPECT_TRUE(std::isnan(out[std::size_t(40 + j)]));
        EXPECT_EQ(out[std::size_t(60 + j)], 0.0f);
      }
    }
  });
}

// What lies behind a row's end stays out of its largest value.
TEST(IntegerLinear, PaddingStaysOutOfTheScale) {
  at_every_level(1, [](Context& context) {
    for (std::int64_t n = 1; n <= 70; ++n) {
      std::vector<float> x(std::size_t(n + 40), 1e30f);
      for (std::int64_t i = 0; i < n; ++i) x[std::size_t(i)] = i % 2 ? -0.5f : 1.0f;
      std::vector<std::int8_t> unit(std::size_t(n), 0);
      unit[0] = 1;
      float y;
      linear(context, {x.data(), DType::f32, {1, n}},
             PackedWeights::pack(context, ConstTensorView(unit.data(), DType::s8, {1, n})), {&y, DType::f32, {1, 1}});
      ASSERT_EQ(y, 1.0f / 127.0f * 127.0f) << n;
    }
  });
}

TEST(IntegerLinear, EmptyShapes) {
  at_every_level(2, [](Context& context) {
    const float bias[2] = {1, 2};
    for (DType dtype : kIntegers) {
      for (Arithmetic arithmetic : {Arithmetic::fast, Arithmetic::exact}) {
        const auto no_inputs = PackedWeights::pack(context, ConstTensorView(nullptr, dtype, {2, 0}));
        std::vector<float> out(6, std::nanf(""));
        LinearOptions options{.arithmetic = arithmetic};
        options.bias = ConstTensorView(bias, DType::f32, {2});
        linear(context, {nullptr, DType::f32, {3, 0}}, no_inputs, {out.data(), DType::f32, {3, 2}}, options);
        EXPECT_EQ(out, (std::vector<float>{1, 2, 1, 2, 1, 2}));
        const auto no_outputs = PackedWeights::pack(context, ConstTensorView(nullptr, dtype, {0, 8}));
        const float x[16] = {};
        linear(context, {x, DType::f32, {2, 8}}, no_outputs, {nullptr, DType::f32, {2, 0}}, {.arithmetic = arithmetic});
      }
    }
  });
}

TEST(IntegerWeights, TakeLittleMoreThanTheirSource) {
  Context context({.num_threads = 1});
  test::Random random(2);
  for (DType dtype : kIntegers) {
    for (std::int64_t group_len : {0, 32, 64, 128, 256}) {
      for (DType scales : {DType::f32, DType::f16}) {
        for (bool zeros : {false, true}) {
          IntegerMatrix weights(dtype, 64, 2048);
          const auto packed = weights.fill(random).scale(random, group_len, scales, zeros).pack(context);
          EXPECT_LE(double(packed.bytes()), 1.1 * double(weights.source_bytes()))
              << dtype_name(dtype) << " " << group_len;
          EXPECT_EQ(packed.bytes(), PackedWeights::packed_bytes(dtype, 64, 2048, packed.scaling()));
        }
      }
    }
  }
}

TEST(IntegerWeights, ErrorsNameTheArgument) {
  Context context({.num_threads = 1});
  std::vector<std::int8_t> codes(64 * 64), zeros(64, 9);
  std::vector<float> scales(64);
  const ConstTensorView view(codes.data(), DType::s8, {4, 64});
  const auto message = [&](const ConstTensorView& c, const IntegerWeightOptions& options) {
    return message_of([&] { PackedWeights::pack_integers(context, c, options); });
  };
  EXPECT_EQ(message(view, {}), "");
  EXPECT_NE(message(view, {.group_len = 48}).find("group_len is 48"), std::string::npos);
  EXPECT_NE(message(view, {.group_len = 128}).find("num_inputs is 64, must be a multiple of group_len, which is 128"),
            std::string::npos);
  EXPECT_NE(message(view, {.scales = ConstTensorView(scales.data(), DType::f32, {4, 2})}).find("scales must be [4, 1]"),
            std::string::npos);
  EXPECT_NE(message(view, {.scales = ConstTensorView(codes.data(), DType::s8, {4, 1})}).find("scales is s8"),
            std::string::npos);
  EXPECT_NE(message(view, {.zeros = ConstTensorView(zeros.data(), DType::u8, {4, 1})}).find("zeros must be s8"),
            std::string::npos);
  EXPECT_NE(message(ConstTensorView(codes.data(), DType::s4, {4, 64}),
                    {.zeros = ConstTensorView(zeros.data(), DType::s8, {4, 1})})
                .find("zeros[0, 0] is 9, must be from -8 to 7"),
            std::string::npos);
  EXPECT_NE(message(ConstTensorView(codes.data(), DType::s4, {4, 63}), {}).find("multiples of 2"), std::string::npos);
  EXPECT_NE(message(ConstTensorView(scales.data(), DType::f32, {1, 64}), {}).find("codes must be s8 or u8 or s4"),
            std::string::npos);
}

TEST(IntegerLinear, RefusesWhatItCannotCompute) {
  Context context({.num_threads = 1});
  std::vector<std::int8_t> codes(2 * 65540), x(65540);
  std::vector<float> floats(65540), y(8);
  std::vector<std::int32_t> whole(8);
  const auto message = [&](std::int64_t inputs, std::int64_t group_len, const ConstTensorView& input,
                           const TensorView& out, const LinearOptions& options = {}) {
    return message_of([&] {
      linear(context, input,
             PackedWeights::pack_integers(context, ConstTensorView(codes.data(), DType::s8, {2, inputs}),
                                          {.group_len = group_len}),
             out, options);
    });
  };
  const TensorView out(y.data(), DType::f32, {1, 2}), integers(whole.data(), DType::i32, {1, 2});
  const auto of = [&](DType dtype, std::int64_t n) {
    return ConstTensorView(dtype == DType::f32 ? static_cast<const void*>(floats.data()) : x.data(), dtype, {1, n});
  };
  EXPECT_EQ(message(64, 0, of(DType::f32, 64), out), "");
  EXPECT_EQ(message(65536, 0, of(DType::s8, 65536), out), "");
  EXPECT_NE(message(65540, 0, of(DType::f32, 65540), out).find("65540 inputs under one scale, must be at most 65536"),
            std::string::npos);
  EXPECT_NE(message(32772, 0, of(DType::u8, 32772), out).find("must be at most 32768"), std::string::npos);
  EXPECT_NE(message(64, 64, of(DType::u8, 64), out).find("groups take s8"), std::string::npos);
  EXPECT_NE(message(64, 64, of(DType::s8, 64), out, {.x_zero = 3}).find("groups take s8"), std::string::npos);
  EXPECT_NE(message(64, 0, of(DType::s8, 64), out, {.x_zero = 200}).find("x_zero is 200"), std::string::npos);
  EXPECT_NE(message(64, 0, of(DType::f32, 64), integers).find("out is i32, but x is f32"), std::string::npos);
  EXPECT_NE(message(64, 32, of(DType::s8, 64), integers).find("weights are in groups"), std::string::npos);
  EXPECT_NE(
      message(64, 0, of(DType::s8, 64), integers, {.activation = Activation::relu}).find("takes no bias, activation"),
      std::string::npos);
}

}  // namespace
}  // namespace ops_transformer
