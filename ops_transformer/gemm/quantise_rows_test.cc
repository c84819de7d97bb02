// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "ops_transformer/gemm/quantise_rows_kernel.h"
#include "ops_transformer/gemm/quantised_reference.h"
#include "tests/support/dtype_of.h"
#include "tests/support/guarded_buffer.h"
#include "tests/support/random.h"

namespace ops_transformer {
namespace {

using test::GuardedBuffer;
using test::kDType;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<Isa> levels() {
  std::vector<Isa> isas;
  for (Isa isa : supported_isas()) {
    if (quantise_rows.row(isa)) isas.push_back(isa);
  }
  return isas;
}

PrepareArgs arguments(const void* x, DType dtype, std::int64_t num_inputs, std::int64_t stride, std::byte* out,
                      std::int64_t row_bytes) {
  PrepareArgs args{};
  args.x = x;
  args.prepared = out;
  args.num_inputs = num_inputs;
  args.x_stride = stride;
  args.prepared_row_bytes = row_bytes;
  args.x_dtype = dtype;
  return args;
}

std::vector<QuantisedBlock> quantise(Isa isa, const std::vector<float>& x) {
  GuardedBuffer<float> row(x.size());
  std::copy(x.begin(), x.end(), row.begin());
  const auto n = std::int64_t(x.size());
  GuardedBuffer<std::byte> out(quantised_row_bytes(n));
  quantise_rows.row(isa)(arguments(row.data(), DType::f32, n, n, out.data(), std::int64_t(out.size())), 0, 1);
  std::vector<QuantisedBlock> blocks((x.size() + 31) / 32);
  std::memcpy(blocks.data(), out.data(), blocks.size() * sizeof(QuantisedBlock));
  return blocks;
}

template <class T>
class QuantiseRows : public testing::Test {};
using Types = testing::Types<float, BFloat16, Float16>;
TYPED_TEST_SUITE(QuantiseRows, Types);

// The elements after each row are huge, and the last row ends at a guard page.
TYPED_TEST(QuantiseRows, MatchesReferenceForEveryLength) {
  using T = TypeParam;
  for (Isa isa : levels()) {
    test::Random random(71);
    for (std::int64_t n = 1; n <= 300; n += n < 70 ? 1 : 23) {
      SCOPED_TRACE(testing::Message() << isa_name(isa) << " length " << n);
      constexpr std::int64_t kRows = 3;
      const std::int64_t stride = n + 2, num_blocks = (n + 31) / 32;
      GuardedBuffer<T> x(std::size_t((kRows - 1) * stride + n));
      for (T& value : x) value = test::from_float<T>(std::is_same_v<T, Float16> ? 6e4f : 1e30f);
      for (std::int64_t r = 0; r < kRows; ++r) {
        for (std::int64_t i = 0; i < n; ++i)
          x[std::size_t(r * stride + i)] = test::from_float<T>(random.uniform(-1, 1));
      }
      const auto row_bytes = std::int64_t(quantised_row_bytes(n));
      GuardedBuffer<std::byte> out(std::size_t(kRows * row_bytes));
      const auto args = arguments(x.data(), kDType<T>, n, stride, out.data(), row_bytes);
      quantise_rows.row(isa)(args, 0, kRows);
      for (std::int64_t r = 0; r < kRows; ++r) {
        std::vector<float> values;
        for (std::int64_t i = 0; i < n; ++i) values.push_back(to_float(x[std::size_t(r * stride + i)]));
        const auto expected = reference::quantise_row(values);
        const auto* blocks = reinterpret_cast<const QuantisedBlock*>(out.data() + r * row_bytes);
        for (std::int64_t b = 0; b < num_blocks; ++b) {
          int sum = 0;
          for (std::int64_t j = 0; j < 32; ++j) {
            const auto i = std::size_t(b * 32 + j);
            ASSERT_EQ(blocks[b].codes[j], i < values.size() ? expected.codes[i] : 0) << "element " << i;
            sum += blocks[b].codes[j];
          }
          ASSERT_EQ(blocks[b].scale, expected.scales[std::size_t(b)]);
          ASSERT_EQ(blocks[b].sum, sum);
          ASSERT_EQ(blocks[b].scaled_sum, blocks[b].scale * float(sum));
        }
      }
    }
  }
}

// A largest magnitude of 127 makes the scale 1, so the codes are the rounded values.
TEST(QuantiseRowsValues, RoundHalfToEven) {
  for (Isa isa : levels()) {
    const auto block =
        quantise(isa, {.5f, 1.5f, 2.5f, -.5f, -1.5f, -2.5f, 126.5f, -126.5f, 125.5f, 127.0f, -127.0f})[0];
    const int expected[] = {0, 2, 2, 0, -2, -2, 126, -126, 126, 127, -127};
    for (std::size_t i = 0; i < std::size(expected); ++i) EXPECT_EQ(block.codes[i], expected[i]) << isa_name(isa);
    EXPECT_EQ(block.scale, 1.0f);
  }
}

TEST(QuantiseRowsValues, ZerosHaveAFiniteScale) {
  for (Isa isa : levels()) {
    for (const auto& block : quantise(isa, std::vector<float>(150, -0.0f))) {
      EXPECT_EQ(block.scale, 0.0f);
      EXPECT_EQ(block.scaled_sum, 0.0f);
      for (int code : block.codes) EXPECT_EQ(code, 0) << isa_name(isa);
    }
  }
}

TEST(QuantiseRowsValues, NonFiniteBlocksAreNan) {
  for (Isa isa : levels()) {
    for (float bad : {kNan, -kNan, kInfinity, -kInfinity}) {
      for (std::size_t at : {40, 150}) {
        std::vector<float> x(192, 1.0f);
        x[at] = bad;
        const auto blocks = quantise(isa, x);
        for (std::size_t b = 0; b < blocks.size(); ++b) {
          const bool has_it = b == at / 32;
          EXPECT_EQ(std::isnan(blocks[b].scale), has_it) << isa_name(isa) << " block " << b;
          EXPECT_EQ(std::isnan(blocks[b].scaled_sum), has_it);
          EXPECT_EQ(blocks[b].codes[0], has_it ? 0 : 127);
          EXPECT_EQ(blocks[b].sum, has_it ? 0 : 32 * 127);
        }
      }
    }
  }
}

TEST(QuantiseRowsValues, SmallestAndLargestNumbers) {
  for (Isa isa : levels()) {
    for (float most : {1e-45f, 1e-40f, 1e-38f, 1e-31f, 3.4e38f}) {
      std::vector<float> x(128, 1.0f);
      std::fill(x.begin() + 64, x.begin() + 96, 0.0f);
      x[67] = most;
      x[69] = -most;
      const auto expected = reference::quantise_row(x);
      const auto block = quantise(isa, x)[2];
      EXPECT_EQ(block.scale, expected.scales[2]);
      EXPECT_EQ(block.codes[3], 127) << isa_name(isa) << " " << most;
      EXPECT_EQ(block.codes[5], -127);
    }
  }
}

}  // namespace
}  // namespace ops_transformer
