// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/base/validate.h"
#include "tests/support/message_of.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

namespace ops_transformer {
namespace {

using test::message_of;

TEST(Validate, MessagesNameArgumentValueAndLimit) {
  float data[64];
  const ConstTensorView view(data, DType::f32, {2, 3}, {5, 1}), columns(data, DType::f32, {2, 3}, {1, 2});
  EXPECT_EQ(message_of([] { invalid("op", "wrong"); }), "op: wrong");
  EXPECT_EQ(message_of([&] { check_rank("op", "x", view, 2); }), "");
  EXPECT_EQ(message_of([&] { check_rank("op", "x", view, 3); }), "op: x must have 3 dimensions, got 2: [2, 3] f32");
  EXPECT_EQ(message_of([&] { check_dtype("op", "x", view, {DType::bf16, DType::f32}); }), "");
  EXPECT_EQ(message_of([&] { check_dtype("op", "x", view, {DType::bf16, DType::f16}); }),
            "op: x must be bf16 or f16, got f32");
  EXPECT_EQ(message_of([&] { check_shape("op", "x", view, {-1, 3}); }), "");
  EXPECT_EQ(message_of([&] { check_shape("op", "x", view, {-1, 4}); }),
            "op: x must be [-1, 4] (-1: any), got [2, 3] f32");
  EXPECT_NE(message_of([&] { check_shape("op", "x", view, {6}); }), "");
  EXPECT_EQ(message_of([&] { check_rows("op", "x", view); }), "");
  EXPECT_EQ(message_of([&] { check_rows("op", "x", columns); }),
            "op: the last dimension of x must be contiguous, got stride 2");
  EXPECT_NE(message_of([&] { check_no_overlap("op", "out", view, "x", columns); })
                .find(fmt::format("op: out must not overlap x: they are the bytes {} to {} and ", fmt::ptr(data),
                                  fmt::ptr(data + 8))),
            std::string::npos);
  EXPECT_EQ(message_of([&] { check_in_place_or_apart("op", "out", view, "x", view); }), "");
  EXPECT_NE(message_of([&] { check_in_place_or_apart("op", "out", view, "x", columns); }), "");
  EXPECT_EQ(message_of([&] { check_in_place_or_apart("op", "out", view, "x", {data + 8, DType::f32, {2}}); }), "");
}

// Any permutation, slice or reversal of a dense tensor is an output; a broadcast or a sliding window is none.
TEST(Validate, EachElementOfAnOutputHasItsOwnPlace) {
  float data[64];
  const auto check = [&](std::vector<std::int64_t> shape, std::vector<std::int64_t> strides) {
    return message_of([&] { check_output("op", "out", {data, DType::f32, shape, strides}); });
  };
  EXPECT_EQ(check({2, 3, 4}, {12, 4, 1}), "");
  EXPECT_EQ(check({3, 4, 2}, {4, 1, 12}), "");
  EXPECT_EQ(check({2, 3, 4}, {-12, 4, -1}), "");
  EXPECT_EQ(check({2, 2}, {8, 2}), "");
  EXPECT_EQ(check({1, 3}, {0, 1}), "");
  EXPECT_EQ(check({0, 3}, {0, 0}), "");
  EXPECT_EQ(check({}, {}), "");
  EXPECT_EQ(check({2, 3}, {0, 1}),
            "op: out has stride 0 in dimension 0 of size 2, must be at least 1: its elements would share memory");
  EXPECT_EQ(check({5, 3}, {1, 1}).find("op: out has stride 1 in dimension "), 0u);
  EXPECT_EQ(check({4, 3}, {2, 1}),
            "op: out has stride 2 in dimension 0 of size 4, must be at least 3: its elements would share memory");
  EXPECT_NE(check({4, 3}, {-2, 1}), "");
  constexpr std::int64_t kLeast = std::numeric_limits<std::int64_t>::min(), kMost = -(kLeast + 1);
  EXPECT_EQ(check({2, 3}, {kLeast, 1}), "");
  EXPECT_NE(check({5, 2}, {kMost, kLeast}), "");
}

}  // namespace
}  // namespace ops_transformer
