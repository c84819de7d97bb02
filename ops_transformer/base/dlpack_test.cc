// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/base/dlpack.h"
#include "tests/support/message_of.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <string>

namespace ops_transformer {
namespace {

using test::message_of;

TEST(Dlpack, ViewsRoundTrip) {
  alignas(8) std::byte data[4096];
  for (DType dtype :
       {DType::f32, DType::f16, DType::bf16, DType::s8, DType::u8, DType::i32, DType::i64, DType::boolean}) {
    const TensorView view(data + 8, dtype, {2, 3, 4}, {-1, 20, 4});
    const DlpackView exported{view};
    const TensorView back = from_dlpack(exported.tensor());
    EXPECT_EQ(back.data(), view.data());
    EXPECT_EQ(back.dtype(), dtype);
    ASSERT_EQ(back.rank(), 3);
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(back.size(i), view.size(i));
      EXPECT_EQ(back.stride(i), view.stride(i));
    }
  }
  const DlpackView scalar{TensorView(data, DType::f32, std::initializer_list<std::int64_t>{})};
  EXPECT_EQ(from_dlpack(scalar.tensor()).rank(), 0);
}

class DlpackErrors : public testing::Test {
 protected:
  std::string message(const std::function<void(DLTensor&)>& change) {
    DLTensor tensor{};
    tensor.data = data_;
    tensor.device = {kDLCPU, 0};
    tensor.ndim = 2;
    tensor.dtype = {kDLFloat, 32, 1};
    tensor.shape = shape_;
    change(tensor);
    return message_of([&] { last_ = from_dlpack(tensor, "x"); });
  }

  alignas(64) float data_[64] = {};
  std::int64_t shape_[9] = {3, 5, 1, 1, 1, 1, 1, 1, 1}, strides_[9] = {8, 1};
  TensorView last_;
};

TEST_F(DlpackErrors, GoodOnesPass) {
  EXPECT_EQ(message([](DLTensor&) {}), "");
  EXPECT_EQ(last_.stride(0), 5);
  EXPECT_EQ(last_.stride(1), 1);
  EXPECT_EQ(message([&](DLTensor& tensor) {
              tensor.strides = strides_;
              tensor.byte_offset = 8;
            }),
            "");
  EXPECT_EQ(last_.data(), data_ + 2);
  EXPECT_EQ(last_.stride(0), 8);
  EXPECT_EQ(message([&](DLTensor& tensor) {
              shape_[0] = 0;
              tensor.data = nullptr;
            }),
            "");
}

TEST_F(DlpackErrors, NameTheTensorAndTheLimit) {
  EXPECT_EQ(message([](DLTensor& tensor) { tensor.device.device_type = kDLCUDA; }),
            "from_dlpack: x is on device type 2, must be on the CPU (1)");
  EXPECT_EQ(message([](DLTensor& tensor) { tensor.ndim = 9; }), "from_dlpack: x has 9 dimensions, must have 0 to 8");
  EXPECT_NE(message([](DLTensor& tensor) { tensor.ndim = -1; }), "");
  EXPECT_NE(message([](DLTensor& tensor) { tensor.dtype = {kDLFloat, 64, 1}; }).find("code 2, bits 64, lanes 1"),
            std::string::npos);
  EXPECT_NE(message([](DLTensor& tensor) { tensor.dtype.lanes = 4; }).find("lanes 4"), std::string::npos);
  EXPECT_NE(message([](DLTensor& tensor) { tensor.dtype = {kDLComplex, 64, 1}; }), "");
  EXPECT_EQ(message([](DLTensor& tensor) { tensor.shape = nullptr; }), "from_dlpack: x has no shape");
  EXPECT_EQ(message([](DLTensor& tensor) { tensor.data = nullptr; }), "from_dlpack: x has no data");
  EXPECT_EQ(message([](DLTensor& tensor) { tensor.byte_offset = 2; }),
            "from_dlpack: x's data must be aligned to 4 bytes");
  EXPECT_EQ(message([&](DLTensor&) { shape_[1] = -5; }), "from_dlpack: x has a dimension of -5, must be >= 0");
}

TEST_F(DlpackErrors, ExtentsThatOverflowAreRefused) {
  EXPECT_NE(message([&](DLTensor&) { shape_[0] = shape_[1] = std::int64_t{1} << 32; }), "");
  EXPECT_NE(message([&](DLTensor&) { shape_[0] = std::int64_t{1} << 62; }), "");
  shape_[0] = 3;
  for (std::int64_t stride : {std::numeric_limits<std::int64_t>::max(), std::numeric_limits<std::int64_t>::min()}) {
    EXPECT_NE(message([&](DLTensor& tensor) {
                strides_[0] = stride;
                tensor.strides = strides_;
              }),
              "");
  }
}

TEST(DlpackView, RefusesBlockQuantisedTypes) {
  std::byte data[64] = {};
  EXPECT_THROW(DlpackView{ConstTensorView(data, DType::q4_0, {32})}, InvalidArgument);
}

}  // namespace
}  // namespace ops_transformer
