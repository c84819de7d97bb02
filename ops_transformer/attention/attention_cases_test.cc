// SPDX-License-Identifier: Apache-2.0
// Faults that users of other libraries met; at every level, with and without the one kernel of deterministic mode.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "ops_transformer/attention/attention_kernel.h"
#include "ops_transformer/attention/flash_attention.h"
#include "tests/support/guarded_buffer.h"
#include "tests/support/message_of.h"
#include "tests/support/random.h"

namespace ops_transformer {
namespace {

using test::GuardedBuffer;
using test::message_of;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

void in_every_way(const std::function<void(Context&)>& body) {
  for (Isa isa : supported_isas()) {
    if (!flash_tiles.row(isa)) continue;
    for (bool deterministic : {false, true}) {
      SCOPED_TRACE(testing::Message() << isa_name(isa) << " deterministic " << deterministic);
      Context context({.num_threads = 2, .deterministic = deterministic, .isa = isa});
      body(context);
    }
  }
}

struct Result {
  std::vector<float> out, lse;
};

// [num_heads, len, dim] contiguous, one batch; outputs start as NaN.
struct Inputs {
  std::int64_t num_q_heads, num_kv_heads, q_len, kv_len, head_dim, value_dim;
  std::vector<float> q, k, v;

  Inputs(std::int64_t heads, std::int64_t kv_heads, std::int64_t queries, std::int64_t keys, std::int64_t dim,
         std::int64_t values)
      : num_q_heads(heads),
        num_kv_heads(kv_heads),
        q_len(queries),
        kv_len(keys),
        head_dim(dim),
        value_dim(values),
        q(std::size_t(heads * queries * dim)),
        k(std::size_t(kv_heads * keys * dim)),
        v(std::size_t(kv_heads * keys * values)) {}

  Result run(Context& context, FlashAttentionOptions options = {}) const {
    GuardedBuffer<float> out(std::size_t(num_q_heads * q_len * value_dim)), lse(std::size_t(num_q_heads * q_len));
    options.lse = TensorView(lse.data(), DType::f32, {1, num_q_heads, q_len});
    flash_attention(context, {q.data(), DType::f32, {1, num_q_heads, q_len, head_dim}},
                    {k.data(), DType::f32, {1, num_kv_heads, kv_len, head_dim}},
                    {v.data(), DType::f32, {1, num_kv_heads, kv_len, value_dim}},
                    {out.data(), DType::f32, {1, num_q_heads, q_len, value_dim}}, options);
    return {std::vector<float>(out.begin(), out.end()), std::vector<float>(lse.begin(), lse.end())};
  }
};

void expect_near(const std::vector<float>& got, const std::vector<float>& expected, float bound = 1e-6f) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (std::isinf(expected[i])) {
      EXPECT_EQ(got[i], expected[i]) << i;
    } else {
      EXPECT_NEAR(got[i], expected[i], bound) << i;
    }
  }
}

std::vector<float> counting(std::size_t n) {
  std::vector<float> v(n);
  for (std::size_t i = 0; i < n; ++i) v[i] = float(i);
  return v;
}

TEST(AttentionCases, WindowHidesWholeLeadingTiles) {
  for (std::int64_t len : {600, 1025}) {
    Inputs in(1, 1, len, len, 2, 2);
    for (auto* t : {&in.q, &in.k, &in.v}) std::fill(t->begin(), t->end(), 1.0f);
    in_every_way([&](Context& context) {
      for (float x : in.run(context, {.mask = Mask::causal, .window = 10}).out) ASSERT_EQ(x, 1.0f);
    });
  }
}

TEST(AttentionCases, WindowGivenAsABias) {
  for (std::int64_t len : {600, 1025}) {
    Inputs in(1, 1, len, len, 2, 2);
    for (auto* t : {&in.q, &in.k, &in.v}) std::fill(t->begin(), t->end(), 1.0f);
    std::vector<float> bias(std::size_t(len * len), -kInf);
    for (std::int64_t i = 0; i < len; ++i) {
      for (std::int64_t j = std::max<std::int64_t>(0, i - 9); j <= i; ++j) bias[std::size_t(i * len + j)] = 0;
    }
    in_every_way([&](Context& context) {
      for (float x : in.run(context, {.bias = ConstTensorView(bias.data(), DType::f32, {len, len})}).out) {
        ASSERT_EQ(x, 1.0f);
      }
    });
  }
}

TEST(AttentionCases, AMaskThatHidesAWholeRow) {
  Inputs in(1, 1, 2, 2, 4, 4);
  test::Random random(1);
  for (auto* t : {&in.q, &in.k, &in.v}) test::fill_normal(*t, random);
  const std::uint8_t visible[4] = {0, 0, 1, 1};
  in_every_way([&](Context& context) {
    const Result masked = in.run(context, {.visible = ConstTensorView(visible, DType::boolean, {2, 2})});
    const Result plain = in.run(context);
    for (std::size_t d = 0; d < 4; ++d) {
      EXPECT_EQ(masked.out[d], 0.0f);
      EXPECT_NEAR(masked.out[4 + d], plain.out[4 + d], 1e-6f);
    }
    EXPECT_EQ(masked.lse[0], -kInf);
    EXPECT_FLOAT_EQ(masked.lse[1], plain.lse[1]);
  });
}

// Over 2^32 bytes between the first row and the last: what counts elements in 32 bits reads another row. Only the pages
// that are written take memory.
TEST(AttentionCases, RowsOfAMaskMayLieFarApart) {
  constexpr std::int64_t kStride = (std::int64_t{1} << 31) - 3, kRows = 4, kKeys = 7;
  void* const memory = mmap(nullptr, std::size_t(kRows * kStride), PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) GTEST_SKIP() << "8 GiB of addresses can't be had";
  auto* const visible = static_cast<std::uint8_t*>(memory);
  for (std::int64_t row = 0; row < kRows; ++row) visible[row * kStride + 2 * row] = 1;
  Inputs in(1, 1, kRows, kKeys, 1, 1);
  in.v = counting(kKeys);
  in_every_way([&](Context& context) {
    const TensorView mask(visible, DType::boolean, {kRows, kKeys}, {kStride, 1});
    EXPECT_EQ(in.run(context, {.visible = mask}).out, (std::vector<float>{0, 2, 4, 6}));
  });
  munmap(memory, std::size_t(kRows * kStride));
}

// The lowest finite value, which others use as a mask, is a bias as any: where it is everywhere, weights are equal.
TEST(AttentionCases, ALowestFiniteBiasHidesNothing) {
  for (std::int64_t queries : {1, 3}) {
    Inputs in(2, 1, queries, 4, 5, 1);
    test::Random random(1);
    for (auto* t : {&in.q, &in.k}) test::fill_normal(*t, random);
    in.v = counting(4);
    const float lowest = std::numeric_limits<float>::lowest();
    in_every_way([&](Context& context) {
      for (float x : in.run(context, {.bias = ConstTensorView(&lowest, DType::f32, {1, 1})}).out) EXPECT_EQ(x, 1.5f);
    });
  }
}

TEST(AttentionCases, TopLeftWhereAskedFor) {
  Inputs in(1, 1, 2, 5, 1, 1);
  in.v = counting(5);
  in_every_way([&](Context& context) {
    const Result r = in.run(context, {.mask = Mask::causal, .align = MaskAlign::first});
    expect_near(r.out, {0, 0.5f});
    expect_near(r.lse, {0, 0.693147f});
  });
}

TEST(AttentionCases, CausalAlignsTheLastQueryWithTheLastKey) {
  Inputs in(1, 1, 2, 5, 1, 1);
  in.v = counting(5);
  in_every_way([&](Context& context) {
    const Result r = in.run(context, {.mask = Mask::causal});
    expect_near(r.out, {1.5f, 2.0f});
    expect_near(r.lse, {1.386294f, 1.609438f});
  });
}

TEST(AttentionCases, RowsThatSeeNoKey) {
  Inputs in(1, 1, 5, 2, 1, 1);
  in.v = {10, 20};
  in_every_way([&](Context& context) {
    const Result r = in.run(context, {.mask = Mask::causal});
    expect_near(r.out, {0, 0, 0, 10, 15});
    EXPECT_EQ(r.out[0], 0.0f);
    expect_near(r.lse, {-kInf, -kInf, -kInf, 0, 0.693147f});
  });
}

TEST(AttentionCases, TwoSidedWindow) {
  Inputs in(1, 1, 5, 5, 1, 1);
  in.v = counting(5);
  in_every_way([&](Context& context) {
    expect_near(in.run(context, {.window_left = 1, .window_right = 1}).out, {0.5f, 1, 2, 3, 3.5f});
  });
}

TEST(AttentionCases, WindowWhileDecoding) {
  Inputs in(1, 1, 1, 10, 1, 1);
  in.v = counting(10);
  in_every_way([&](Context& context) {
    expect_near(in.run(context, {.mask = Mask::causal, .window = 4}).out, {7.5f});
    const Result plain = in.run(context, {.mask = Mask::causal});
    for (std::int64_t window : {10, 11}) {
      const Result r = in.run(context, {.mask = Mask::causal, .window = window});
      EXPECT_EQ(r.out, plain.out);
      EXPECT_EQ(r.lse, plain.lse);
    }
  });
}

// What the mask hides never enters: not its keys, not its values, at the diagonal and in whole tiles.
TEST(AttentionCases, MaskedNanAndInfinityStayOut) {
  for (float poison : {kNan, kInf, -kInf}) {
    for (std::int64_t len : {2, 40, 150}) {
      Inputs clean(2, 1, len, len, 5, 7);
      test::Random random(9);
      for (auto* t : {&clean.q, &clean.k, &clean.v}) test::fill_normal(*t, random);
      Inputs bad = clean;
      const std::int64_t key = len / 2;
      for (std::int64_t d = 0; d < 5; ++d) bad.k[std::size_t(key * 5 + d)] = poison;
      for (std::int64_t d = 0; d < 7; d += 2) bad.v[std::size_t(key * 7 + d)] = poison;
      in_every_way([&](Context& context) {
        for (const FlashAttentionOptions& options :
             {FlashAttentionOptions{.mask = Mask::causal}, FlashAttentionOptions{.mask = Mask::causal, .window = 3}}) {
          const Result a = clean.run(context, options), b = bad.run(context, options);
          for (std::int64_t h = 0; h < 2; ++h) {
            for (std::int64_t i = 0; i < len; ++i) {
              const bool sees = i >= key && (options.window == kNoWindow || i < key + options.window);
              if (sees) continue;
              for (std::int64_t d = 0; d < 7; ++d) {
                ASSERT_EQ(a.out[std::size_t((h * len + i) * 7 + d)], b.out[std::size_t((h * len + i) * 7 + d)]) << i;
              }
              ASSERT_EQ(a.lse[std::size_t(h * len + i)], b.lse[std::size_t(h * len + i)]);
            }
          }
        }
      });
    }
  }
}

// A mask by key: NaN that only some rows of a group see reaches those alone, whatever the length and the kernel.
TEST(AttentionCases, AMaskKeepsNanFromTheRowsItHidesItFrom) {
  for (float poison : {kNan, kInf}) {
    for (std::int64_t queries : {1, 2, 40}) {
      for (std::int64_t keys : {2, 70, 300}) {
        Inputs clean(4, 1, queries, keys, 5, 37);
        test::Random random(9);
        for (auto* t : {&clean.q, &clean.k, &clean.v}) test::fill_normal(*t, random);
        Inputs bad = clean;
        const std::int64_t key = keys / 2;
        for (std::int64_t d = 0; d < 5; ++d) bad.k[std::size_t(key * 5 + d)] = poison;
        for (std::int64_t d = 0; d < 37; ++d) bad.v[std::size_t(key * 37 + d)] = poison;
        std::vector<std::uint8_t> visible(std::size_t(4 * keys), 1);
        std::vector<float> bias(std::size_t(4 * keys));
        for (std::int64_t h : {0, 1, 3}) {
          visible[std::size_t(h * keys + key)] = 0;
          bias[std::size_t(h * keys + key)] = -kInf;
        }
        const FlashAttentionOptions by_mask{.visible = ConstTensorView(visible.data(), DType::boolean, {4, 1, keys})};
        const FlashAttentionOptions by_bias{.bias = ConstTensorView(bias.data(), DType::f32, {4, 1, keys})};
        in_every_way([&](Context& context) {
          for (const FlashAttentionOptions& options : {by_mask, by_bias}) {
            const Result a = clean.run(context, options), b = bad.run(context, options);
            for (std::size_t i = 0; i < a.out.size(); ++i) {
              const bool sees = i / std::size_t(37 * queries) == 2;
              ASSERT_EQ(std::isfinite(b.out[i]), !sees);
              if (!sees) {
                ASSERT_EQ(a.out[i], b.out[i]);
              }
            }
          }
        });
      }
    }
  }
}

TEST(AttentionCases, NanInLiveDataStaysNan) {
  for (std::int64_t len : {3, 70}) {
    Inputs clean(1, 1, len, len, 4, 4);
    test::Random random(9);
    for (auto* t : {&clean.q, &clean.k, &clean.v}) test::fill_normal(*t, random);
    Inputs bad = clean, bad_value = clean;
    bad.q[1] = kNan;
    bad_value.v[2] = kNan;
    in_every_way([&](Context& context) {
      const Result a = clean.run(context), b = bad.run(context), c = bad_value.run(context);
      for (std::size_t i = 0; i < a.out.size(); ++i) {
        EXPECT_EQ(std::isnan(b.out[i]), i < 4);
        EXPECT_EQ(std::isnan(c.out[i]), i % 4 == 2);
        if (i >= 4) {
          EXPECT_EQ(a.out[i], b.out[i]);
        }
        if (i % 4 != 2) {
          EXPECT_EQ(a.out[i], c.out[i]);
        }
      }
      EXPECT_TRUE(std::isnan(b.lse[0]));
      EXPECT_EQ(a.lse, c.lse);
    });
  }
  // A row alone, which decode reads by rows of keys.
  Inputs one(1, 1, 1, 5, 4, 4);
  std::fill(one.k.begin(), one.k.end(), 1.0f);
  one.q[0] = kNan;
  in_every_way([&](Context& context) {
    for (float x : one.run(context).out) EXPECT_TRUE(std::isnan(x));
  });
}

TEST(AttentionCases, InfinityInALiveValueStaysInfinity) {
  for (std::int64_t queries : {1, 3}) {
    Inputs in(1, 1, queries, 5, 4, 3);
    in.v[std::size_t(4 * 3 + 1)] = kInf;
    in_every_way([&](Context& context) {
      const Result r = in.run(context);
      for (std::size_t i = 0; i < r.out.size(); ++i) EXPECT_EQ(r.out[i], i % 3 == 1 ? kInf : 0.0f);
    });
  }
}

TEST(AttentionCases, HeadsOfAGroupStandTogether) {
  for (auto [heads, kv_heads] : {std::pair{4, 2}, {48, 2}, {40, 2}, {28, 4}, {21, 7}, {71, 1}}) {
    Inputs in(heads, kv_heads, 1, 3, 8, 2);
    for (std::size_t i = 0; i < in.v.size(); ++i) in.v[i] = float(i / 6);
    in_every_way([&](Context& context) {
      const Result r = in.run(context);
      for (std::int64_t h = 0; h < heads; ++h) {
        EXPECT_FLOAT_EQ(r.out[std::size_t(2 * h)], float(h / (heads / kv_heads))) << "head " << h << " of " << heads;
      }
    });
  }
}

TEST(AttentionCases, EmptyTensors) {
  in_every_way([&](Context& context) {
    float unused[8] = {};
    const auto view = [&](std::int64_t b, std::int64_t h, std::int64_t l, std::int64_t d) {
      return TensorView(unused, DType::f32, {b, h, l, d});
    };
    TensorView empty(nullptr, DType::f32, {0, 1, 1, 4});
    flash_attention(context, empty, empty, empty, empty);
    empty = TensorView(nullptr, DType::f32, {1, 0, 1, 4});
    flash_attention(context, empty, empty, empty, empty);
    empty = TensorView(nullptr, DType::f32, {1, 1, 0, 4});
    flash_attention(context, empty, view(1, 1, 2, 4), view(1, 1, 2, 4), empty);
    const Result no_keys = Inputs(2, 1, 3, 0, 4, 5).run(context, {.mask = Mask::causal});
    for (float x : no_keys.out) EXPECT_EQ(x, 0.0f);
    for (float x : no_keys.lse) EXPECT_EQ(x, -kInf);
    const Result no_key_for_one = Inputs(2, 1, 1, 0, 4, 5).run(context);
    for (float x : no_key_for_one.out) EXPECT_EQ(x, 0.0f);
    for (std::int64_t queries : {1, 3}) {
      const Result no_values = Inputs(1, 1, queries, 4, 2, 0).run(context);
      for (float x : no_values.lse) EXPECT_NEAR(x, std::log(4.0f), 1e-6);
    }
    EXPECT_THROW(Inputs(1, 1, 1, 1, 0, 1).run(context), InvalidArgument);
  });
}

TEST(AttentionCases, LargeScoresInHalfPrecision) {
  in_every_way([&](Context& context) {
    for (std::int64_t queries : {1, 2}) {
      std::vector<Float16> q(std::size_t(queries) * 128, to_float16(256)), k(2 * 128, to_float16(256)),
          v = {to_float16(1), to_float16(3)}, out(static_cast<std::size_t>(queries));
      std::vector<float> lse(static_cast<std::size_t>(queries));
      flash_attention(context, {q.data(), DType::f16, {1, 1, queries, 128}}, {k.data(), DType::f16, {1, 1, 2, 128}},
                      {v.data(), DType::f16, {1, 1, 2, 1}}, {out.data(), DType::f16, {1, 1, queries, 1}},
                      {.lse = TensorView(lse.data(), DType::f32, {1, 1, queries})});
      for (Float16 x : out) EXPECT_EQ(to_float(x), 2.0f);
      for (float x : lse) EXPECT_NEAR(x, 741455.9f, 0.15f);  // a step of f32 is 0.0625 here
    }
  });
}

TEST(AttentionCases, SumOverLongKeysDoesNotStall) {
  constexpr std::int64_t kLen = 65536;
  std::vector<BFloat16> q(8), k(kLen * 8), v(kLen);
  std::fill_n(v.begin(), kLen / 2, to_bfloat16(1));
  in_every_way([&](Context& context) {
    BFloat16 out;
    float lse;
    flash_attention(context, {q.data(), DType::bf16, {1, 1, 1, 8}}, {k.data(), DType::bf16, {1, 1, kLen, 8}},
                    {v.data(), DType::bf16, {1, 1, kLen, 1}}, {&out, DType::bf16, {1, 1, 1, 1}},
                    {.lse = TensorView(&lse, DType::f32, {1, 1, 1})});
    EXPECT_EQ(to_float(out), 0.5f);
    EXPECT_NEAR(lse, 11.0904f, 1e-4f);
  });
}

// One token in a batch of empty sequences, 7 key heads in groups of 3.
// A sink alone takes the whole sum of a row that sees nothing.
TEST(AttentionCases, SinksOfEmptyRows) {
  Inputs in(2, 1, 3, 1, 1, 1);
  in.v = {8};
  const float sinks[2] = {0, -kInf};
  in_every_way([&](Context& context) {
    const Result r = in.run(context, {.mask = Mask::causal, .sinks = sinks});
    expect_near(r.out, {0, 0, 4, 0, 0, 8});
    expect_near(r.lse, {0, 0, 0.693147f, -kInf, -kInf, 0});
  });
}

TEST(AttentionCases, EmptySequencesInAPackedBatch) {
  test::Random random(4);
  std::vector<float> q(21 * 120), k(7 * 120), v(7 * 120);
  for (auto* t : {&q, &k, &v}) test::fill_normal(*t, random);
  const std::vector<std::int64_t> offsets = {0, 0, 0, 0, 1};
  in_every_way([&](Context& context) {
    GuardedBuffer<float> out(21 * 120), lse(21);
    flash_attention_varlen(context, {q.data(), DType::f32, {1, 21, 120}}, {k.data(), DType::f32, {1, 7, 120}},
                           {v.data(), DType::f32, {1, 7, 120}}, {out.data(), DType::f32, {1, 21, 120}}, offsets,
                           offsets, {.lse = TensorView(lse.data(), DType::f32, {1, 21})});
    for (std::size_t h = 0; h < 21; ++h) {
      double dot = 0;
      for (std::size_t d = 0; d < 120; ++d) {
        EXPECT_FLOAT_EQ(out[h * 120 + d], v[h / 3 * 120 + d]);
        dot += double(q[h * 120 + d]) * k[h / 3 * 120 + d];
      }
      EXPECT_NEAR(lse[h], dot / std::sqrt(120.0), 1e-5);
    }
  });
}

TEST(AttentionCases, OffsetsThatDoNotCoverTheRows) {
  Context context({.num_threads = 1});
  std::vector<float> x(10 * 4);
  GuardedBuffer<float> out(10 * 4);
  const TensorView rows(x.data(), DType::f32, {10, 1, 4}), out_rows(out.data(), DType::f32, {10, 1, 4});
  const std::vector<std::int64_t> good = {0, 10}, two = {0, 5, 10};
  const auto message = [&](const std::vector<std::int64_t>& q, const std::vector<std::int64_t>& kv) -> std::string {
    return message_of([&] { flash_attention_varlen(context, rows, rows, rows, out_rows, q, kv); });
  };
  EXPECT_NE(message({0, 4}, good).find("q_offsets[1] is 4, must be the number of rows, 10"), std::string::npos);
  EXPECT_NE(message({0, 5, 3}, two).find("q_offsets[2] is 3, less than the entry before it, 5"), std::string::npos);
  EXPECT_NE(message({1, 10}, good).find("q_offsets[0] is 1, must be 0"), std::string::npos);
  EXPECT_NE(message(good, {0, 4}).find("kv_offsets[1] is 4"), std::string::npos);
  EXPECT_NE(message(good, two).find("kv_offsets has 3 entries, must have batch + 1 = 2"), std::string::npos);
  EXPECT_NE(message({}, good), "");
  for (float x_out : out) EXPECT_TRUE(std::isnan(x_out));
}

TEST(AttentionCases, PackedSequencesDoNotMix) {
  std::vector<float> q(6 * 4), v(6 * 4);
  for (std::size_t t = 0; t < 6; ++t) {
    q[t * 4 + t % 3] = 20;
    for (std::size_t d = 0; d < 4; ++d) v[t * 4 + d] = float(t * 4 + d);
  }
  const std::vector<std::int64_t> offsets = {0, 3, 6};
  in_every_way([&](Context& context) {
    GuardedBuffer<float> out(6 * 4);
    flash_attention_varlen(context, {q.data(), DType::f32, {6, 1, 4}}, {q.data(), DType::f32, {6, 1, 4}},
                           {v.data(), DType::f32, {6, 1, 4}}, {out.data(), DType::f32, {6, 1, 4}}, offsets, offsets,
                           {.softmax_scale = 0.5f});
    for (std::size_t i = 0; i < out.size(); ++i) EXPECT_EQ(out[i], v[i]);
  });
}

TEST(AttentionErrors, NameTheArgument) {
  Context context({.num_threads = 1});
  float x[64] = {};
  float y[64];
  const TensorView t(x, DType::f32, {1, 2, 3, 4}), out(y, DType::f32, {1, 2, 3, 4});
  const auto message = [&](const TensorView& q, const TensorView& k, const TensorView& v, const TensorView& o,
                           const FlashAttentionOptions& options = {}) -> std::string {
    return message_of([&] { flash_attention(context, q, k, v, o, options); });
  };
  EXPECT_EQ(message(t, t, t, out), "");
  EXPECT_NE(message(TensorView(x, DType::f32, {2, 3, 4}), t, t, out).find("q must have 4 dimensions"),
            std::string::npos);
  EXPECT_NE(message(t, TensorView(x, DType::f32, {1, 3, 3, 4}), TensorView(x, DType::f32, {1, 3, 3, 4}), out)
                .find("num_q_heads is 2, must be a multiple of num_kv_heads, 3"),
            std::string::npos);
  EXPECT_NE(message(t, TensorView(x, DType::f16, {1, 2, 3, 4}), t, out).find("k must be f32 or bf16 or s8, got f16"),
            std::string::npos);
  EXPECT_NE(message(t, t, t, t).find("out must not overlap q"), std::string::npos);
  EXPECT_NE(message(t, t, t, TensorView(y, DType::f32, {1, 2, 3, 4}, {0, 0, 4, 1})).find("stride 0"),
            std::string::npos);
  EXPECT_NE(message(t, t, t, out, {.softmax_scale = kNan}).find("softmax_scale is nan"), std::string::npos);
  EXPECT_NE(message(t, t, t, out, {.mask = Mask::causal, .window = 0}).find("window is 0"), std::string::npos);
  EXPECT_NE(message(t, t, t, out, {.window = 3}).find("needs the causal mask"), std::string::npos);
  EXPECT_NE(message(t, t, t, out, {.keep_prob = 0.5f}).find("keep_prob is 0.5 and needs"), std::string::npos);
  EXPECT_NE(message(t, t, t, out, {.logit_soft_cap = -1}).find("logit_soft_cap is -1"), std::string::npos);
  EXPECT_NE(message(t, t, t, out, {.alibi_slopes = std::span(x, 3)}).find("alibi_slopes has 3 entries"),
            std::string::npos);
  const float nan_sink[2] = {0, kNan};
  EXPECT_NE(message(t, t, t, out, {.sinks = nan_sink}).find("sinks[1] is nan"), std::string::npos);
  const std::int64_t prefixes[2] = {4, 1};
  EXPECT_NE(message(t, t, t, out, {.prefix_lens = prefixes}).find("prefix_lens has 2 entries"), std::string::npos);
  EXPECT_NE(message(t, t, t, out, {.prefix_lens = std::span(prefixes, 1)}).find("prefix_lens[0] is 4"),
            std::string::npos);
  EXPECT_NE(message(t, t, t, out, {.window_left = 1, .prefix_lens = std::span(prefixes, 1)}).find("limit to the left"),
            std::string::npos);
  EXPECT_NE(message(t, t, t, out, {.visible = t}).find("visible must be bool"), std::string::npos);
  EXPECT_NE(message(t, t, t, out, {.bias = ConstTensorView(x, DType::f32, {3, 4})}).find("dimension 1 must be 3 or 1"),
            std::string::npos);
  EXPECT_NE(message(t, t, t, out, {.bias = ConstTensorView(y, DType::f32, {3, 3})}).find("out must not overlap bias"),
            std::string::npos);
  EXPECT_NE(message(t, t, t, out, {.lse = TensorView(y, DType::f32, {1, 2, 3})}).find("lse must not overlap out"),
            std::string::npos);
  // More heads than an int holds, of values that need no memory.
  const std::int64_t many = std::int64_t{1} << 32;
  EXPECT_NE(message(TensorView(x, DType::f32, {1, many, 1, 1}, {0, 0, 0, 1}),
                    TensorView(x, DType::f32, {1, many, 1, 1}, {0, 0, 0, 1}),
                    TensorView(x, DType::f32, {1, many, 1, 0}), TensorView(y, DType::f32, {1, many, 1, 0}))
                .find("num_q_heads is 4294967296, must be at most 65536"),
            std::string::npos);
  const TensorView wide(x, DType::f32, {1, 1, 0, 769}), wide_out(y, DType::f32, {1, 1, 0, 769});
  EXPECT_NE(message(wide, wide, wide, wide_out).find("head_dim is 769, must be from 1 to 768"), std::string::npos);
}

}  // namespace
}  // namespace ops_transformer
