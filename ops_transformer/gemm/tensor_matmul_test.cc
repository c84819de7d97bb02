// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/gemm/tensor_matmul.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "ops_transformer/gemm/float_multiply_kernel.h"
#include "ops_transformer/gemm/linear_reference.h"
#include "tests/support/guarded_buffer.h"
#include "tests/support/message_of.h"
#include "tests/support/random.h"
#include "tests/support/tolerance.h"

namespace ops_transformer {
namespace {

using test::GuardedBuffer;
using test::message_of;
using Sizes = std::vector<std::int64_t>;

// A tensor whose dimensions lie in memory in any order, each with a gap behind it.
class Tensor {
 public:
  Tensor(DType dtype, Sizes shape, const std::vector<int>& order) : dtype_(dtype), shape_(std::move(shape)) {
    strides_.resize(shape_.size());
    std::int64_t stride = 1;
    for (std::size_t i = order.size(); i-- > 0;) {
      strides_[std::size_t(order[i])] = stride;
      stride *= shape_[std::size_t(order[i])] + (i + 1 == order.size() ? 3 : 0);
    }
    bytes_.resize(std::size_t(stride) * element_bytes(dtype), std::byte{0xff});
  }
  Tensor& fill(test::Random& random) {
    walk([&](std::int64_t at) {
      const float f = random.normal();
      const BFloat16 b = to_bfloat16(f);
      const Float16 h = to_float16(f);
      const auto byte = std::uint8_t(random.integer(0, 255));
      const void* from = dtype_ == DType::f32    ? static_cast<const void*>(&f)
                         : dtype_ == DType::bf16 ? &b
                         : dtype_ == DType::f16  ? static_cast<const void*>(&h)
                                                 : &byte;
      std::memcpy(place(at), from, element_bytes(dtype_));
    });
    return *this;
  }
  double get(std::int64_t at) const {
    const std::byte* p = bytes_.data() + std::size_t(at) * element_bytes(dtype_);
    float f;
    BFloat16 b;
    Float16 h;
    std::int32_t i;
    switch (dtype_) {
      case DType::f32:
        return std::memcpy(&f, p, 4), f;
      case DType::bf16:
        return std::memcpy(&b, p, 2), to_float(b);
      case DType::f16:
        return std::memcpy(&h, p, 2), to_float(h);
      case DType::i32:
        return std::memcpy(&i, p, 4), i;
      case DType::s8:
        return std::int8_t(*p);
      default:
        return std::uint8_t(*p);
    }
  }
  TensorView view() { return {bytes_.data(), dtype_, shape_, strides_}; }
  // Of the matrices, right-aligned and broadcast over `index`.
  std::int64_t at(const Sizes& index, std::int64_t row, std::int64_t column) const {
    const std::size_t own = shape_.size() - 2, more = index.size() - own;
    std::int64_t offset = row * strides_[own] + column * strides_[own + 1];
    for (std::size_t i = 0; i < own; ++i) offset += shape_[i] == 1 ? 0 : index[i + more] * strides_[i];
    return offset;
  }

 private:
  template <class Body>
  void walk(const Body& body) {
    std::int64_t count = 1;
    for (std::int64_t size : shape_) count *= size;
    for (std::int64_t n = 0; n < count; ++n) {
      std::int64_t offset = 0, left = n;
      for (std::size_t i = shape_.size(); i-- > 0; left /= shape_[i]) offset += left % shape_[i] * strides_[i];
      body(offset);
    }
  }
  std::byte* place(std::int64_t at) { return bytes_.data() + std::size_t(at) * element_bytes(dtype_); }
  DType dtype_;
  Sizes shape_, strides_;
  std::vector<std::byte> bytes_;
};

std::vector<int> order_of(std::size_t rank, bool swapped) {
  std::vector<int> order;
  for (std::size_t i = 0; i < rank; ++i) order.push_back(int(i));
  if (swapped) std::swap(order[rank - 1], order[rank - 2]);
  return order;
}

struct Case {
  DType a, b, out;
  Sizes a_batch, b_batch, batch;
  std::int64_t m, n, k;
  bool transpose_b = false, a_swapped = false, b_swapped = false, epilogue = false;
  Arithmetic arithmetic = Arithmetic::fast;
  int a_zero = 0, b_zero = 0;
};

void check(Context& context, const Case& c) {
  SCOPED_TRACE(testing::Message() << isa_name(context.isa()) << " " << dtype_name(c.a) << " " << dtype_name(c.b)
                                  << " M " << c.m << " N " << c.n << " K " << c.k << " transposed " << c.transpose_b
                                  << " swapped " << c.a_swapped << c.b_swapped);
  const auto shape = [](Sizes batch, std::int64_t rows, std::int64_t columns) {
    batch.insert(batch.end(), {rows, columns});
    return batch;
  };
  test::Random random(std::uint64_t(c.m * 10007 + c.n * 101 + c.k));
  const auto a_shape = shape(c.a_batch, c.m, c.k),
             b_shape = c.transpose_b ? shape(c.b_batch, c.n, c.k) : shape(c.b_batch, c.k, c.n),
             out_shape = shape(c.batch, c.m, c.n);
  Tensor a(c.a, a_shape, order_of(a_shape.size(), c.a_swapped)), b(c.b, b_shape, order_of(b_shape.size(), c.b_swapped)),
      out(c.out, out_shape, order_of(out_shape.size(), false)),
      residual(c.out, out_shape, order_of(out_shape.size(), false));
  a.fill(random);
  b.fill(random);
  std::vector<float> bias(static_cast<std::size_t>(c.n));
  test::fill_normal(bias, random);
  MatmulOptions options{
      .transpose_b = c.transpose_b, .arithmetic = c.arithmetic, .a_zero = c.a_zero, .b_zero = c.b_zero};
  if (c.epilogue) {
    options.bias = ConstTensorView(bias.data(), DType::f32, {c.n});
    options.activation = Activation::gelu_tanh;
    options.residual = residual.fill(random).view();
  }
  matmul(context, a.view(), b.view(), out.view(), options);
  std::int64_t count = 1;
  for (std::int64_t size : c.batch) count *= size;
  for (std::int64_t index = 0; index < count; ++index) {
    Sizes at(c.batch.size());
    std::int64_t left = index;
    for (std::size_t i = at.size(); i-- > 0; left /= c.batch[i]) at[i] = left % c.batch[i];
    std::vector<double> weights;
    for (std::int64_t j = 0; j < c.n; ++j) {
      for (std::int64_t i = 0; i < c.k; ++i)
        weights.push_back(b.get(c.transpose_b ? b.at(at, j, i) : b.at(at, i, j)) - c.b_zero);
    }
    for (std::int64_t r = 0; r < c.m; ++r) {
      std::vector<double> row, added;
      for (std::int64_t i = 0; i < c.k; ++i) {
        double value = a.get(a.at(at, r, i)) - c.a_zero;
        if (c.b == DType::bf16 && c.arithmetic == Arithmetic::fast) value = to_float(to_bfloat16(float(value)));
        row.push_back(value);
      }
      for (std::int64_t j = 0; c.epilogue && j < c.n; ++j) added.push_back(residual.get(residual.at(at, r, j)));
      const auto expected = reference::linear(row, weights,
                                              c.epilogue ? std::vector<double>(bias.begin(), bias.end())
                                              : c.k == 0 ? std::vector<double>(std::size_t(c.n))
                                                         : std::vector<double>{},
                                              c.epilogue ? Activation::gelu_tanh : Activation::none, added);
      for (std::int64_t j = 0; j < c.n; ++j) {
        const double e = expected.value[std::size_t(j)], got = out.get(out.at(at, r, j));
        if (c.out == DType::i32) {
          ASSERT_EQ(got, e) << r << " " << j;
        } else {
          ASSERT_NEAR(got, e, test::tolerance(double(c.k + 2), expected.magnitude[std::size_t(j)], e, c.out))
              << r << " " << j;
        }
      }
    }
  }
}

TEST(Matmul, MatchesReferenceAtEveryLevel) {
  for (Isa isa : supported_isas()) {
    Context context({.num_threads = 2, .isa = isa});
    for (DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      for (bool transpose_b : {false, true}) {
        for (bool b_swapped : {false, true}) {
          for (bool a_swapped : {false, true}) {
            check(context, {dtype, dtype, DType::f32, {}, {}, {}, 7, 33, 65, transpose_b, a_swapped, b_swapped, true});
            check(context, {dtype, dtype, dtype, {2, 3}, {2, 3}, {2, 3}, 3, 17, 20, transpose_b, a_swapped, b_swapped});
          }
        }
        check(context, {dtype, dtype, DType::f32, {}, {}, {}, 1, 150, 300, transpose_b});
        check(context, {dtype, dtype, DType::f32, {}, {}, {}, 130, 20, 77, transpose_b});
      }
      check(context, {dtype, dtype, DType::f32, {4}, {}, {4}, 5, 18, 9});         // one b for all
      check(context, {dtype, dtype, DType::f32, {2, 1}, {3}, {2, 3}, 5, 18, 9});  // broadcast both ways
      check(context, {dtype, dtype, DType::f32, {}, {3}, {3}, 5, 18, 9, false, false, false, true});
      check(context, {dtype, DType::f32, DType::bf16, {}, {}, {}, 5, 18, 9});
      check(context,
            {DType::f32, dtype, DType::f16, {}, {}, {}, 5, 18, 9, false, false, false, false, Arithmetic::exact});
    }
    for (DType a : {DType::s8, DType::u8}) {
      for (DType b : {DType::s8, DType::u8}) {
        for (bool swapped : {false, true}) {
          for (bool transpose_b : {false, true}) {
            check(context, {a, b, DType::i32, {}, {}, {}, 5, 7, 65, transpose_b, swapped, swapped});
            check(context, {.a = a,
                            .b = b,
                            .out = DType::i32,
                            .a_batch = {2},
                            .b_batch = {2},
                            .batch = {2},
                            .m = 9,
                            .n = 35,
                            .k = 130,
                            .transpose_b = transpose_b,
                            .b_swapped = swapped,
                            .a_zero = 42,
                            .b_zero = 17});
          }
        }
      }
    }
  }
}

TEST(Matmul, EmptyShapes) {
  Context context({.num_threads = 2});
  for (DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    check(context, {dtype, dtype, DType::f32, {}, {}, {}, 0, 5, 7});
    check(context, {dtype, dtype, DType::f32, {}, {}, {}, 5, 0, 7});
    check(context, {dtype, dtype, DType::f32, {}, {}, {}, 3, 2, 0, false, false, false, true});
    check(context, {dtype, dtype, DType::f32, {0}, {0}, {0}, 3, 2, 4});
    check(context, {dtype, dtype, DType::f32, {2}, {}, {2}, 3, 2, 0});
  }
  check(context, {DType::s8, DType::u8, DType::i32, {}, {}, {}, 3, 4, 0});
}

// Rows broadcast by a stride of 0, and negative strides.
TEST(Matmul, AnyStrides) {
  Context context({.num_threads = 1});
  const float a[] = {1, 2, 3, 4}, b[] = {1, 10, 100, 1000};
  float out[4];
  matmul(context, {a, DType::f32, {2, 2}, {0, 1}}, {b, DType::f32, {2, 2}}, {out, DType::f32, {2, 2}});
  EXPECT_EQ(std::vector<float>(out, out + 4), (std::vector<float>{201, 2010, 201, 2010}));
  matmul(context, {a + 3, DType::f32, {2, 2}, {-2, -1}}, {b + 2, DType::f32, {2, 2}, {-2, 1}},
         {out, DType::f32, {2, 2}});
  EXPECT_EQ(std::vector<float>(out, out + 4), (std::vector<float>{403, 4030, 201, 2010}));
}

TEST(Matmul, ErrorsNameTheArgument) {
  Context context({.num_threads = 1});
  float a[24] = {}, b[24] = {}, out[24];
  std::memset(out, 0x11, sizeof out);
  std::int8_t codes[24] = {};
  std::int32_t sums[24] = {};
  const auto message = [&](const ConstTensorView& x, const ConstTensorView& y, const TensorView& z,
                           const MatmulOptions& options = {}) {
    return message_of([&] { matmul(context, x, y, z, options); });
  };
  const auto expect = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  const ConstTensorView left(a, DType::f32, {2, 3}), right(b, DType::f32, {3, 4});
  const TensorView to(out, DType::f32, {2, 4});
  expect(message({a, DType::f32, {3}}, right, to), "a must have at least 2 dimensions");
  expect(message(left, {b, DType::f32, {4, 3}}, to), "b has 4 inputs, must have 3");
  expect(message(left, right, {out, DType::f32, {2, 3}}), "out must be [2, 4]");
  expect(message({a, DType::f32, {2, 2, 3}}, {b, DType::f32, {3, 3, 2}}, to), "broadcast");
  expect(message(left, {codes, DType::s8, {3, 4}}, to), "b must be f32");
  expect(message({codes, DType::s8, {2, 3}}, {codes, DType::s8, {3, 4}}, to), "out must be i32");
  expect(message({codes, DType::s8, {2, 3}}, {codes, DType::s8, {3, 4}}, {sums, DType::i32, {2, 4}},
                 {.activation = Activation::relu}),
         "take no bias");
  expect(message({codes, DType::s8, {2, 3}}, {codes, DType::u8, {3, 4}}, {sums, DType::i32, {2, 4}}, {.b_zero = -1}),
         "b_zero is -1");
  expect(message(left, right, to, {.a_zero = 1}), "a_zero is 1, must be from 0 to 0 for f32");
  expect(message(left, right, {a, DType::f32, {2, 4}}), "overlap");
  expect(message(left, right, {out, DType::f32, {2, 4}, {4, 2}}), "last dimension of out must be contiguous");
  expect(message(left, right, to, {.bias = ConstTensorView(a, DType::f32, {3})}), "bias must be [4]");
  expect(message(left, right, to, {.residual = ConstTensorView(a, DType::f32, {2, 3})}), "residual must be [2, 4]");
  for (float v : out) EXPECT_EQ(std::memcmp(&v, "\x11\x11\x11\x11", 4), 0);
}

}  // namespace
}  // namespace ops_transformer
