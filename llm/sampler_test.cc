// SPDX-License-Identifier: Apache-2.0
#include "llm/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <numeric>

#include "ops_transformer/base/error.h"

namespace ops_transformer::llm {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "no error";
}

std::vector<float> random_logits(std::size_t size, std::uint64_t seed) {
  Random random(seed);
  std::vector<float> logits(size);
  for (float& logit : logits) logit = static_cast<float>(random.uniform() * 20 - 10);
  return logits;
}

/// What may be drawn and how likely, from the definition: everything sorted, in double.
std::map<TokenId, double> expected(std::span<const float> logits, const SamplerOptions& options) {
  std::vector<TokenId> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](TokenId a, TokenId b) {
    return std::pair(-logits[static_cast<std::size_t>(a)], a) < std::pair(-logits[static_cast<std::size_t>(b)], b);
  });
  if (options.top_k > 0) order.resize(std::min(order.size(), static_cast<std::size_t>(options.top_k)));
  std::vector<double> p;
  for (const TokenId id : order) {
    p.push_back(std::exp(
        (static_cast<double>(logits[static_cast<std::size_t>(id)]) - logits[static_cast<std::size_t>(order[0])]) /
        options.temperature));
  }
  const auto normalise = [&] {
    const double total = std::accumulate(p.begin(), p.end(), 0.0);
    for (double& x : p) x /= total;
  };
  normalise();
  double sum = 0;
  std::size_t kept = 0;
  while (kept < p.size() && sum < options.top_p * (1 - 1e-12)) sum += p[kept++];
  p.resize(kept);
  while (p.back() < static_cast<double>(options.min_p) * p.front()) p.pop_back();
  normalise();
  std::map<TokenId, double> result;
  for (std::size_t i = 0; i < p.size(); ++i) result[order[i]] = p[i];
  return result;
}

TEST(Sampler, OptionsAreChecked) {
  const auto with = [](auto change) {
    SamplerOptions options;
    change(options);
    return refusal([&] { Sampler{options}; });
  };
  EXPECT_EQ(with([](auto& o) { o.temperature = -1; }), "temperature: -1, needed 0 or more, finite");
  EXPECT_EQ(with([](auto& o) { o.temperature = kNan; }), "temperature: nan, needed 0 or more, finite");
  EXPECT_EQ(with([](auto& o) { o.temperature = kInfinity; }), "temperature: inf, needed 0 or more, finite");
  EXPECT_EQ(with([](auto& o) { o.top_k = -1; }), "top_k: -1, needed 0 (all) or more");
  EXPECT_EQ(with([](auto& o) { o.top_p = 0; }), "top_p: 0, needed more than 0, at most 1");
  EXPECT_EQ(with([](auto& o) { o.top_p = 1.5f; }), "top_p: 1.5, needed more than 0, at most 1");
  EXPECT_EQ(with([](auto& o) { o.top_p = kNan; }), "top_p: nan, needed more than 0, at most 1");
  EXPECT_EQ(with([](auto& o) { o.min_p = 1.01f; }), "min_p: 1.01, needed 0 to 1");
  EXPECT_EQ(with([](auto& o) { o.repetition_penalty = 0; }), "repetition_penalty: 0, needed more than 0, finite");
  EXPECT_EQ(with([](auto& o) { o.repetition_window = -2; }), "repetition_window: -2, needed -1 (all) or more");
  EXPECT_EQ(with([](auto&) {}), "no error");
}

TEST(Sampler, LogitsAreChecked) {
  for (const float temperature : {0.0f, 1.0f}) {
    SamplerOptions options;
    options.temperature = temperature;
    Sampler sampler(options);
    std::vector<float> logits(100, 0.5f);
    for (const std::size_t at : {0u, 15u, 17u, 99u}) {
      for (const float wrong : {kNan, kInfinity}) {
        std::vector<float> bad = logits;
        bad[at] = wrong;
        const std::string message = refusal([&] { sampler.sample(bad); });
        EXPECT_NE(message.find("logits: element " + std::to_string(at)), std::string::npos) << message;
      }
    }
    EXPECT_NE(refusal([&] { sampler.sample({}); }), "no error");
    EXPECT_NE(refusal([&] { sampler.sample(std::vector<float>(5, -kInfinity)); }), "no error");
    EXPECT_EQ(sampler.sample(std::vector<float>{-kInfinity, -3.0f, -kInfinity}), 1);
  }
}

TEST(Sampler, GreedyTakesTheLowestIdAmongEquals) {
  Sampler sampler(SamplerOptions{});
  for (std::size_t size = 1; size < 70; ++size) {
    for (std::size_t at = 0; at < size; ++at) {
      std::vector<float> logits(size, -1.0f);
      std::fill(logits.begin() + static_cast<std::ptrdiff_t>(at), logits.end(), 2.0f);
      EXPECT_EQ(sampler.sample(logits), static_cast<TokenId>(at));
    }
  }
}

TEST(Sampler, PublishedSequence) {
  // xoshiro256** 1.0 and splitmix64 as published: first numbers from the state that seed 0 makes.
  Random random(0);
  EXPECT_EQ(random.next(), 0x99ec5f36cb75f2b4u);
  EXPECT_EQ(random.next(), 0xbf6e1f784956452au);
  EXPECT_EQ(random.next(), 0x1a5f849d4933e6e0u);
}

TEST(Sampler, DrawsWhatTheDefinitionAllows) {
  const std::vector<float> logits = random_logits(100, 7);
  std::vector<SamplerOptions> cases;
  for (const float temperature : {0.3f, 1.0f, 3.0f}) {
    for (const std::int32_t top_k : {0, 1, 5, 99, 1000}) {
      for (const float top_p : {1.0f, 0.95f, 0.5f, 1e-6f}) {
        for (const float min_p : {0.0f, 0.1f, 1.0f}) {
          cases.push_back({.temperature = temperature, .top_k = top_k, .top_p = top_p, .min_p = min_p});
        }
      }
    }
  }
  for (const SamplerOptions& options : cases) {
    SCOPED_TRACE(testing::Message() << options.temperature << ' ' << options.top_k << ' ' << options.top_p << ' '
                                    << options.min_p);
    const auto allowed = expected(logits, options);
    Sampler sampler(options);
    std::map<TokenId, int> drawn;
    constexpr int kDraws = 4000;
    for (int i = 0; i < kDraws; ++i) ++drawn[sampler.sample(logits)];
    for (const auto& [id, count] : drawn) EXPECT_TRUE(allowed.contains(id)) << id;
    for (const auto& [id, p] : allowed) {
      // Six standard deviations of a binomial count.
      EXPECT_NEAR(drawn[id], kDraws * p, 6 * std::sqrt(kDraws * p * (1 - p)) + 1) << id;
    }
  }
}

TEST(Sampler, SeedsRepeat) {
  const std::vector<float> logits = random_logits(1000, 3);
  const auto run = [&](std::uint64_t seed) {
    Sampler sampler({.temperature = 1.0f, .top_k = 40, .top_p = 0.9f, .seed = seed});
    std::vector<TokenId> ids;
    for (int i = 0; i < 50; ++i) ids.push_back(sampler.sample(logits));
    return ids;
  };
  EXPECT_EQ(run(1), run(1));
  EXPECT_NE(run(1), run(2));
}

TEST(Sampler, TopKPrefersLowerIdsAmongEquals) {
  const std::vector<float> logits(100, 1.0f);
  Sampler sampler({.temperature = 1.0f, .top_k = 3});
  for (int i = 0; i < 200; ++i) EXPECT_LT(sampler.sample(logits), 3);
}

TEST(Sampler, ExtremesStayFinite) {
  const std::vector<float> logits = {3e38f, -3e38f, 2.9e38f, -kInfinity};
  for (const float temperature : {1e-45f, 1e-30f, 1.0f, 3e38f}) {
    Sampler sampler({.temperature = temperature, .top_p = 0.999f});
    for (int i = 0; i < 50; ++i) EXPECT_NE(sampler.sample(logits), 3);
  }
  Sampler cold({.temperature = 1e-45f});
  EXPECT_EQ(cold.sample(logits), 0);
}

TEST(Sampler, RepetitionPenalty) {
  const std::vector<float> logits = {4.0f, 3.0f, -1.0f};
  Sampler sampler({.repetition_penalty = 2.0f, .repetition_window = 2});
  EXPECT_EQ(sampler.sample(logits), 0);
  sampler.accept(0);
  EXPECT_EQ(sampler.sample(logits), 1);  // 2, 3, -1
  sampler.accept(1);
  EXPECT_EQ(sampler.sample(logits), 0);  // 2, 1.5, -1
  sampler.accept(1);                     // 0 has left the window, though 1 stands in it twice
  sampler.accept(1);
  EXPECT_EQ(sampler.sample(logits), 0);  // 4, 1.5, -1
  sampler.accept(2);
  sampler.accept(2);
  EXPECT_EQ(sampler.sample(std::vector<float>{-1.5f, -3.0f, -1.0f}), 0);  // -1 becomes -2

  Sampler all({.repetition_penalty = 2.0f, .repetition_window = -1});
  all.accept(0);
  for (int i = 0; i < 1000; ++i) all.accept(2);
  EXPECT_EQ(all.sample(logits), 1);
  Sampler none({.repetition_penalty = 2.0f, .repetition_window = 0});
  none.accept(0);
  EXPECT_EQ(none.sample(logits), 0);
  all.accept(1 << 30);
  EXPECT_EQ(refusal([&] { all.sample(logits); }), "logits: 3 elements, but token 1073741824 was accepted");
  EXPECT_EQ(refusal([&] { all.accept(-1); }), "id: -1, needed 0 or more");
  Sampler strong({.repetition_penalty = 1e-38f, .repetition_window = -1});
  strong.accept(0);
  EXPECT_EQ(strong.sample(logits), 0);
}

}  // namespace
}  // namespace ops_transformer::llm
