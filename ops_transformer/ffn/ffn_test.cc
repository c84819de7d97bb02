// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/ffn/ffn.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "ops_transformer/gemm/linear_reference.h"
#include "tests/support/guarded_buffer.h"
#include "tests/support/message_of.h"
#include "tests/support/random.h"
#include "tests/support/tolerance.h"

namespace ops_transformer {
namespace {

using test::GuardedBuffer;
using test::message_of;

constexpr std::int64_t kTokens = 13, kHidden = 20, kInner = 37, kExperts = 4;

struct Network {
  explicit Network(bool is_gated)
      : gated(is_gated),
        n1(gated ? 2 * kInner : kInner),
        x(kTokens * kHidden),
        w1(std::size_t(kExperts * n1 * kHidden)),
        w2(kExperts * kHidden * kInner),
        bias1(std::size_t(kExperts * n1)),
        bias2(kExperts * kHidden) {
    test::Random random(21);
    for (auto* values : {&x, &w1, &w2, &bias1, &bias2}) test::fill_normal(*values, random, 0.4f);
  }
  void pack(Context& context) {
    for (std::int64_t e = 0; e < kExperts; ++e) {
      const float* first = w1.data() + e * n1 * kHidden;
      if (gated) {
        packed1[e] =
            PackedWeights::pack_gate_up(context, ConstTensorView(first, DType::f32, {kInner, kHidden}),
                                        ConstTensorView(first + kInner * kHidden, DType::f32, {kInner, kHidden}));
      } else {
        packed1[e] = PackedWeights::pack(context, ConstTensorView(first, DType::f32, {kInner, kHidden}));
      }
      packed2[e] = PackedWeights::pack(
          context, ConstTensorView(w2.data() + e * kHidden * kInner, DType::f32, {kHidden, kInner}));
      pointers1[e] = &packed1[e];
      pointers2[e] = &packed2[e];
    }
  }
  ConstTensorView x_view() const { return {x.data(), DType::f32, {kTokens, kHidden}}; }
  FfnOptions options() const {
    return {.bias1 = ConstTensorView(bias1.data(), DType::f32, {kExperts, n1}),
            .bias2 = ConstTensorView(bias2.data(), DType::f32, {kExperts, kHidden})};
  }

  bool gated;
  std::int64_t n1;
  GuardedBuffer<float> x, w1, w2, bias1, bias2;
  PackedWeights packed1[kExperts], packed2[kExperts];
  const PackedWeights *pointers1[kExperts], *pointers2[kExperts];
};

std::vector<double> part(const GuardedBuffer<float>& values, std::int64_t begin, std::int64_t n) {
  return {values.data() + begin, values.data() + begin + n};
}

// Errors of the first matmul pass through an activation whose slope is below 1.13, and through the second one.
void expect_row(const Network& net, std::int64_t expert, std::int64_t token, Activation activation, const float* got) {
  const auto row = part(net.x, token * kHidden, kHidden);
  const auto first = [&](std::int64_t begin, Activation a) {
    const std::int64_t at = expert * net.n1 + begin;
    return reference::linear(row, part(net.w1, at * kHidden, kInner * kHidden), part(net.bias1, at, kInner), a, {});
  };
  reference::LinearRow inner = first(0, activation);
  if (net.gated) {
    const auto up = first(kInner, Activation::none);
    for (std::size_t i = 0; i < inner.value.size(); ++i) {
      inner.magnitude[i] = inner.magnitude[i] * std::abs(up.value[i]) + up.magnitude[i] * std::abs(inner.value[i]);
      inner.value[i] *= up.value[i];
    }
  }
  const auto w2 = part(net.w2, expert * kHidden * kInner, kHidden * kInner),
             bias2 = part(net.bias2, expert * kHidden, kHidden);
  const auto expected = reference::linear(inner.value, w2, bias2, Activation::none, {});
  for (std::size_t j = 0; j < std::size_t(kHidden); ++j) {
    double magnitude = std::abs(bias2[j]);
    for (std::size_t i = 0; i < inner.value.size(); ++i)
      magnitude += (inner.magnitude[i] + std::abs(inner.value[i])) * std::abs(w2[j * std::size_t(kInner) + i]);
    ASSERT_NEAR(got[j], expected.value[j],
                test::tolerance(double(kHidden + kInner), magnitude, expected.value[j], DType::f32))
        << "token " << token << " output " << j;
  }
}

// Counts and ends of the same rows, an expert without any, rows past the last one left as they are.
TEST(Ffn, MatchesReferenceAtEveryLevel) {
  const std::vector<std::int64_t> counts = {3, 0, 7, 1}, ends = {3, 3, 10, 11};
  for (bool gated : {false, true}) {
    Network net(gated);
    for (Isa isa : supported_isas()) {
      Context context({.num_threads = 2, .isa = isa});
      net.pack(context);
      for (Activation activation : {Activation::relu, Activation::silu, Activation::gelu_fast, Activation::gelu_tanh}) {
        for (bool as_ends : {false, true}) {
          SCOPED_TRACE(testing::Message() << isa_name(isa) << " gated " << gated << " activation " << int(activation));
          GuardedBuffer<float> out(kTokens * kHidden);
          FfnOptions options = net.options();
          options.activation = activation;
          options.expert_tokens = as_ends ? ends : counts;
          options.expert_tokens_are_ends = as_ends;
          ffn(context, net.x_view(), net.pointers1, net.pointers2, {out.data(), DType::f32, {kTokens, kHidden}},
              options);
          std::int64_t token = 0;
          for (std::int64_t e = 0; e < kExperts; ++e) {
            for (; token < ends[std::size_t(e)]; ++token)
              expect_row(net, e, token, activation, out.data() + token * kHidden);
          }
          for (std::size_t i = std::size_t(token * kHidden); i < out.size(); ++i) ASSERT_TRUE(std::isnan(out[i]));
        }
      }
    }
  }
}

TEST(Ffn, OneExpertTakesAllRows) {
  Network net(false);
  Context context({.num_threads = 2});
  net.pack(context);
  GuardedBuffer<float> out(kTokens * kHidden);
  FfnOptions options{.activation = Activation::gelu_erf,
                     .bias1 = ConstTensorView(net.bias1.data(), DType::f32, {1, kInner}),
                     .bias2 = ConstTensorView(net.bias2.data(), DType::f32, {1, kHidden})};
  ffn(context, net.x_view(), std::span(net.pointers1).first(1), std::span(net.pointers2).first(1),
      {out.data(), DType::f32, {kTokens, kHidden}}, options);
  for (std::int64_t t = 0; t < kTokens; ++t) expect_row(net, 0, t, Activation::gelu_erf, out.data() + t * kHidden);
}

TEST(FfnErrors, NameTheArgument) {
  Network net(false);
  Context context({.num_threads = 1});
  net.pack(context);
  std::vector<float> out(kTokens * kHidden, 7.0f);
  const auto message = [&](const std::vector<std::int64_t>& tokens, bool ends, std::size_t experts = kExperts) {
    FfnOptions options{.expert_tokens = tokens, .expert_tokens_are_ends = ends};
    return message_of([&] {
      ffn(context, net.x_view(), std::span(net.pointers1).first(experts), net.pointers2,
          {out.data(), DType::f32, {kTokens, kHidden}}, options);
    });
  };
  EXPECT_EQ(message({3, 9, 2, 0}, false), "ffn: expert_tokens[2] is 2, must be from 0 to 1");
  EXPECT_EQ(message({3, -1, 2, 0}, false), "ffn: expert_tokens[1] is -1, must be from 0 to 10");
  EXPECT_EQ(message({3, 2, 6, 9}, true), "ffn: expert_tokens[1] is 2, must be from 3 to 13");
  EXPECT_EQ(message({3, 9, 10, 14}, true), "ffn: expert_tokens[3] is 14, must be from 10 to 13");
  EXPECT_NE(message({3}, false).find("expert_tokens has 1 entries"), std::string::npos);
  EXPECT_NE(message({3, 3}, false, 2).find("w1 and w2 have 2 and 4 experts"), std::string::npos);
  EXPECT_EQ(out, std::vector<float>(out.size(), 7.0f));
}

}  // namespace
}  // namespace ops_transformer
