// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/attention/sparse_mode.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "ops_transformer/base/isa.h"
#include "tests/support/random.h"

namespace ops_transformer {
namespace {

struct Lengths {
  std::int64_t q_len, kv_len;
};
constexpr Lengths kLengths[] = {{0, 3}, {7, 12}, {0, 0}, {5, 5}, {70, 150}, {1, 140}, {12, 4}, {0, 2}};
constexpr std::int64_t kFirst = 1, kLast = 6;  // with queries

// Sequences packed one after another. All scores are 0 and value j is a one at j, so a row of the result is 1 / n at
// each of the n keys it sees, and 0 elsewhere.
class Packed {
 public:
  Packed() {
    for (const Lengths& one : kLengths) {
      q_offsets.push_back(q_offsets.back() + one.q_len);
      kv_offsets.push_back(kv_offsets.back() + one.kv_len);
      widest = std::max(widest, one.kv_len);
    }
    zeros.assign(std::size_t(std::max(q_offsets.back(), kv_offsets.back())), 0.0f);
    values.assign(std::size_t(kv_offsets.back() * widest), 0.0f);
    for (std::size_t b = 0; b < std::size(kLengths); ++b) {
      for (std::int64_t j = 0; j < kLengths[b].kv_len; ++j) {
        values[std::size_t((kv_offsets[b] + j) * widest + j)] = 1.0f;
      }
    }
  }

  std::vector<float> run(Context& context, const FlashAttentionOptions& options) const {
    std::vector<float> out(std::size_t(q_offsets.back() * widest), NAN);
    const auto view = [&](const std::vector<float>& data, std::int64_t rows, std::int64_t dim) {
      return ConstTensorView(data.data(), DType::f32, {rows, 1, dim});
    };
    flash_attention_varlen(context, view(zeros, q_offsets.back(), 1), view(zeros, kv_offsets.back(), 1),
                           view(values, kv_offsets.back(), widest),
                           TensorView(out.data(), DType::f32, {q_offsets.back(), 1, widest}), q_offsets, kv_offsets,
                           options);
    return out;
  }

  std::vector<std::int64_t> q_offsets{0}, kv_offsets{0};
  std::int64_t widest = 0;
  std::vector<float> zeros, values;
};

constexpr std::int64_t kPre = 4, kNext = 2;

// Modes 2 ... 8; `prefix` of the sequence.
bool sees(int mode, std::int64_t b, std::int64_t i, std::int64_t j, std::int64_t d, std::int64_t prefix) {
  if (mode == 7) mode = b == kLast ? 4 : 3;
  if (mode == 8) mode = b == kFirst ? 4 : 2;
  if (mode == 2) return j <= i;
  if (mode == 3) return j <= i + d;
  if (mode == 4) return j >= i + d - kPre && j <= i + d + kNext;
  return j <= i + d || j < prefix;
}

TEST(SparseMode, RulesOfPackedSequencesAtEveryLevel) {
  const Packed packed;
  std::vector<std::int64_t> prefixes;
  for (const Lengths& one : kLengths) prefixes.push_back(std::min<std::int64_t>(one.kv_len, 9));
  for (Isa isa : supported_isas()) {
    for (int threads : {1, 2}) {
      Context context({.num_threads = threads, .isa = isa});
      for (int mode = 2; mode <= 8; ++mode) {
        SCOPED_TRACE(testing::Message() << isa_name(isa) << " mode " << mode);
        FlashAttentionOptions options;
        if (mode == 5 || mode == 6) options.prefix_lens = prefixes;
        const SparseModeOptions sparse("op", options, {.mode = mode, .pre_tokens = kPre, .next_tokens = kNext},
                                       packed.q_offsets);
        const std::vector<float> out = packed.run(context, sparse.options());
        for (std::size_t b = 0; b < std::size(kLengths); ++b) {
          const auto [q_len, kv_len] = kLengths[b];
          for (std::int64_t i = 0; i < q_len; ++i) {
            std::int64_t n = 0;
            for (std::int64_t j = 0; j < kv_len; ++j) {
              n += sees(mode, std::int64_t(b), i, j, kv_len - q_len, prefixes[b]);
            }
            for (std::int64_t j = 0; j < packed.widest; ++j) {
              const bool seen = j < kv_len && sees(mode, std::int64_t(b), i, j, kv_len - q_len, prefixes[b]);
              ASSERT_NEAR(out[std::size_t((packed.q_offsets[b] + i) * packed.widest + j)], seen ? 1.0 / double(n) : 0.0,
                          1e-6)
                  << "sequence " << b << " query " << i << " key " << j;
            }
          }
        }
      }
    }
  }
}

TEST(SparseMode, TurnsMasksOfAnyStrides) {
  // Hidden is anything but 0: [1, 2, 3] of a transposed, strided array.
  const std::vector<std::int8_t> mask{0, 7, 5, 7, -1, 7, 0, 7, 0, 7, 1, 7};
  const ConstTensorView view(mask.data(), DType::s8, {1, 2, 3}, {0, 2, 4});
  const SparseModeOptions sparse("op", {}, {.mode = 0, .pre_tokens = 5, .next_tokens = -1, .atten_mask = view});
  const FlashAttentionOptions& options = sparse.options();
  ASSERT_TRUE(options.visible && options.visible->rank() == 3);
  const auto* visible = options.visible->as<std::uint8_t>();
  EXPECT_EQ(std::vector<int>(visible, visible + 6), (std::vector<int>{1, 0, 1, 0, 1, 0}));
  EXPECT_TRUE(options.align == MaskAlign::first && options.window_left == 5 && options.window_right == -1);
  EXPECT_TRUE(SparseModeOptions("op", {}, {.mode = 0, .pre_tokens = 5}).options().window_left == kNoWindow);
}

TEST(SparseMode, FlatTreesAreCheckedAgainstTheirSize) {
  const std::vector<std::uint8_t> flat(25, 0);
  const auto make = [&](std::vector<std::int64_t> q_offsets) {
    const ConstTensorView view(flat.data(), DType::u8, {25});
    const SparseModeOptions sparse("op", {}, {.mode = 9, .atten_mask = view}, q_offsets);
    return sparse.options().tree->shape()[1];
  };
  EXPECT_EQ(make({0, 3, 3, 7}), 4);
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  for (const auto& bad : std::vector<std::vector<std::int64_t>>{
           {0, 3}, {0, 5, 1000}, {0, 3, 7, kMost}, {1, 4, 8}, {0, -3, 2}, {0, 5, -kMost}, {0}}) {
    EXPECT_THROW(make(bad), InvalidArgument);
  }
}

TEST(SparseMode, OuterCutIsForPackedSequences) {
  Context context({.num_threads = 1});
  float x[4] = {}, out[4];
  const ConstTensorView t(x, DType::f32, {1, 1, 2, 2});
  const TensorView o(out, DType::f32, {1, 1, 2, 2});
  EXPECT_THROW(flash_attention(context, t, t, t, o, {.outer_cut = OuterCut::first}), InvalidArgument);
  const Packed packed;
  EXPECT_THROW(packed.run(context, {.mask = Mask::causal, .window = 3, .outer_cut = OuterCut::last}), InvalidArgument);
}

}  // namespace
}  // namespace ops_transformer
