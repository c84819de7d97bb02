// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/base/tensor_view.h"

#include <gtest/gtest.h>

#include <vector>

#include "ops_transformer/base/error.h"

namespace ops_transformer {
namespace {

TEST(TensorView, ContiguousStridesAreRowMajor) {
  float data[24];
  const TensorView view(data, DType::f32, {2, 3, 4});
  EXPECT_EQ(view.rank(), 3);
  EXPECT_EQ(view.stride(0), 12);
  EXPECT_EQ(view.stride(1), 4);
  EXPECT_EQ(view.stride(2), 1);
  EXPECT_EQ(view.num_elements(), 24);
  EXPECT_TRUE(view.contiguous());
  EXPECT_EQ(describe(view), "[2, 3, 4] f32");
  const ConstTensorView readable = view;
  EXPECT_EQ(readable.data(), data);
  EXPECT_EQ(readable.stride(0), 12);
  EXPECT_EQ(describe(ConstTensorView(data, DType::q4_0, std::vector<std::int64_t>{})), "[] q4_0");
}

TEST(TensorView, KnowsWhatIsContiguous) {
  float data[64];
  EXPECT_FALSE(TensorView(data, DType::f32, {2, 3}, {4, 1}).contiguous());
  EXPECT_TRUE(TensorView(data, DType::f32, {2, 3}, {4, 1}).rows_contiguous());
  EXPECT_FALSE(TensorView(data, DType::f32, {2, 3}, {1, 2}).rows_contiguous());
  EXPECT_TRUE(TensorView(data, DType::f32, {1, 3}, {99, 1}).contiguous());
  EXPECT_TRUE(TensorView(data, DType::f32, {3, 1}, {1, 99}).rows_contiguous());
  EXPECT_TRUE(TensorView(data, DType::f32, {0, 3}, {7, 7}).contiguous());
}

TEST(TensorView, TooManyDimensionsAreAnError) {
  float data[1];
  const std::vector<std::int64_t> nine(9, 1), eight(8, 1);
  EXPECT_THROW(TensorView(data, DType::f32, nine), InvalidArgument);
  EXPECT_THROW(TensorView(data, DType::f32, nine, nine), InvalidArgument);
  EXPECT_EQ(TensorView(data, DType::f32, eight).rank(), 8);
}

TEST(ByteRange, CoversWhatStridesReach) {
  float data[64];
  const auto* base = reinterpret_cast<const std::byte*>(data);
  const auto range = [&](const ConstTensorView& view) {
    const ByteRange bytes = byte_range(view);
    return std::pair(bytes.begin - base, bytes.end - base);
  };
  EXPECT_EQ(range({data, DType::f32, {2, 3}, {10, 2}}), std::pair(0L, 4L * 15));
  EXPECT_EQ(range({data + 20, DType::f32, {3}, {-5}}), std::pair(4L * 10, 4L * 21));
  EXPECT_EQ(range({data, DType::f32, {4, 3}, {0, 1}}), std::pair(0L, 12L));
  EXPECT_EQ(range({data, DType::q8_0, {2, 64}}), std::pair(0L, 4L * 34));
  EXPECT_EQ(byte_range(ConstTensorView(data, DType::f32, {2, 0})).begin, nullptr);
}

TEST(Overlaps, OnlyWhereBytesMeet) {
  float data[64];
  const ConstTensorView first(data, DType::f32, {8}), second(data + 8, DType::f32, {8}),
      across(data + 7, DType::f32, {8});
  EXPECT_FALSE(overlaps(first, second));
  EXPECT_TRUE(overlaps(first, across));
  EXPECT_TRUE(overlaps(across, second));
  EXPECT_TRUE(overlaps(first, first));
  EXPECT_FALSE(overlaps(first, ConstTensorView(data, DType::f32, {0})));
}

}  // namespace
}  // namespace ops_transformer
