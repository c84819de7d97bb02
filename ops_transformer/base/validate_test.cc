// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/base/validate.h"
#include "tests/support/message_of.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>

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
  EXPECT_EQ(message_of([&] { check_no_overlap("op", "out", view, "x", columns); }), "op: out must not overlap x");
}

}  // namespace
}  // namespace ops_transformer
