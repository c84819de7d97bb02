// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/base/tensor_view.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "ops_transformer/base/error.h"
#include "tests/support/message_of.h"

namespace ops_transformer {
namespace {

using test::message_of;

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

TEST(TensorView, AStrideForEachDimension) {
  float data[8] = {};
  const std::vector<std::int64_t> none, one = {1}, three = {4, 1, 1};
  for (const auto& strides : {none, one, three}) {
    EXPECT_EQ(message_of([&] { TensorView(data, DType::f32, std::vector<std::int64_t>{2, 4}, strides); }),
              "a tensor has " + std::to_string(strides.size()) + " strides, must have one for each of 2 dimensions");
  }
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

// Sizes and strides whose products pass 2^63, or whose bytes leave memory, stand for everything: they overlap anything.
TEST(ByteRange, WhatCantBeCountedIsEverything) {
  float data[8], other[8];
  constexpr std::int64_t kHuge = std::int64_t{1} << 62, kLeast = std::numeric_limits<std::int64_t>::min();
  for (const ConstTensorView& view :
       {ConstTensorView(data, DType::f32, {5}, {kHuge}), ConstTensorView(data, DType::f32, {2, 2}, {kHuge, kHuge}),
        ConstTensorView(data, DType::f32, {2}, {kHuge}), ConstTensorView(data, DType::f32, {3}, {kLeast}),
        ConstTensorView(data, DType::u8, {2}, {-(kHuge + kHuge / 2)}),
        ConstTensorView(data, DType::q8_0, {kHuge, 32}, {32, 1})}) {
    EXPECT_EQ(byte_range(view).end, reinterpret_cast<const std::byte*>(UINTPTR_MAX)) << describe(view);
    EXPECT_TRUE(overlaps(view, ConstTensorView(other, DType::f32, {8}))) << describe(view);
    EXPECT_FALSE(overlaps(view, ConstTensorView(other, DType::f32, {0}))) << describe(view);
  }
  EXPECT_EQ(byte_range(ConstTensorView(data, DType::f32, {0, 5}, {1, kHuge})).end, nullptr);
}

TEST(SamePlace, OnlyTheSameElementsAtTheSameAddresses) {
  float data[16];
  const ConstTensorView view(data, DType::f32, {2, 3}, {5, 1});
  EXPECT_TRUE(same_place(view, view));
  EXPECT_FALSE(same_place(view, {data, DType::f32, {2, 3}, {3, 1}}));
  EXPECT_FALSE(same_place(view, {data, DType::bf16, {2, 3}, {5, 1}}));
  EXPECT_FALSE(same_place(view, {data + 1, DType::f32, {2, 3}, {5, 1}}));
  EXPECT_FALSE(same_place(view, {data, DType::f32, {2, 2}, {5, 1}}));
  EXPECT_TRUE(same_place({data, DType::f32, {1, 3}, {5, 1}}, {data, DType::f32, {1, 3}, {9, 1}}));
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
