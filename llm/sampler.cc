// SPDX-License-Identifier: Apache-2.0
#include "llm/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "ops_transformer/base/error.h"

namespace ops_transformer::llm {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

void require(bool good, std::string_view name, auto value, std::string_view limits) {
  if (!good) throw InvalidArgument(fmt::format("{}: {}, needed {}", name, value, limits));
}

const SamplerOptions& checked(const SamplerOptions& options) {
  const auto& [temperature, top_k, top_p, min_p, penalty, window, seed] = options;
  require(temperature >= 0 && temperature < kInfinity, "temperature", temperature, "0 or more, finite");
  require(top_k >= 0, "top_k", top_k, "0 (all) or more");
  require(top_p > 0 && top_p <= 1, "top_p", top_p, "more than 0, at most 1");
  require(min_p >= 0 && min_p <= 1, "min_p", min_p, "0 to 1");
  require(penalty > 0 && penalty < kInfinity, "repetition_penalty", penalty, "more than 0, finite");
  require(window >= -1, "repetition_window", window, "-1 (all) or more");
  return options;
}

/// The largest logit; throws where one is NaN or +inf, or all are -inf.
float best_logit(std::span<const float> logits) {
  // 16 independent maxima: one chain of compares would take 4 cycles an element.
  constexpr std::size_t kLanes = 16;
  std::array<float, kLanes> best;
  std::array<int, kLanes> wrong{};
  best.fill(-kInfinity);
  const std::size_t whole = logits.size() / kLanes * kLanes;
  const auto take = [&](std::size_t lane, float logit) {
    best[lane] = logit > best[lane] ? logit : best[lane];
    wrong[lane] |= !(logit < kInfinity);
  };
  for (std::size_t i = 0; i < whole; i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) take(lane, logits[i + lane]);
  }
  for (std::size_t i = whole; i < logits.size(); ++i) take(0, logits[i]);
  if (std::find(wrong.begin(), wrong.end(), 1) != wrong.end()) {
    const auto at = std::find_if(logits.begin(), logits.end(), [](float logit) { return !(logit < kInfinity); });
    throw InvalidArgument(
        fmt::format("logits: element {} is {}, needed a number below +inf", at - logits.begin(), *at));
  }
  const float all = *std::max_element(best.begin(), best.end());
  if (all == -kInfinity) {
    throw InvalidArgument(
        fmt::format("logits: none of {} elements is above -inf, at least one is needed", logits.size()));
  }
  return all;
}

/// exp(x) for x <= 0, relative error below 1.1e-7 (0 under -87). Written out so that a seed draws the same tokens
/// whatever the C library, and so that compilers vectorise it: a draw from 49152 tokens takes 121 µs, with std::exp 408
/// (EPYC Zen 4, 1 thread, 2026-11).
float exp_of_negative(float x) noexcept {
  constexpr float kLog2E = 1.44269504f, kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
  // Masks and not choices between values, which gcc 12 would make branches.
  const std::int32_t keep = -static_cast<std::int32_t>(x >= -87.0f);
  const float kept = std::bit_cast<float>(std::bit_cast<std::int32_t>(x) & keep);
  // Adding and taking away 1.5 * 2^23 rounds to a whole number.
  const float whole = (kept * kLog2E + 12582912.0f) - 12582912.0f;
  const float r = (kept - whole * kLn2High) - whole * kLn2Low;
  float poly = 1.0f / 5040;
  poly = poly * r + 1.0f / 720;
  poly = poly * r + 1.0f / 120;
  poly = poly * r + 1.0f / 24;
  poly = poly * r + 1.0f / 6;
  poly = poly * r + 0.5f;
  poly = poly * r + 1.0f;
  poly = poly * r + 1.0f;
  const float power = std::bit_cast<float>((static_cast<std::int32_t>(whole) + 127) << 23);
  return std::bit_cast<float>(std::bit_cast<std::int32_t>(poly * power) & keep);
}

/// In a fixed order on 8 lanes.
double sum_of(std::span<const float> values) noexcept {
  std::array<double, 8> lanes{};
  const std::size_t whole = values.size() / 8 * 8;
  for (std::size_t i = 0; i < whole; i += 8) {
    for (std::size_t lane = 0; lane < 8; ++lane) lanes[lane] += static_cast<double>(values[i + lane]);
  }
  for (std::size_t i = whole; i < values.size(); ++i) lanes[i - whole] += static_cast<double>(values[i]);
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

}  // namespace

Random::Random(std::uint64_t seed) noexcept {
  for (std::uint64_t& word : state_) {
    std::uint64_t z = seed += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    word = z ^ z >> 31;
  }
}

std::uint64_t Random::next() noexcept {
  const std::uint64_t result = std::rotl(state_[1] * 5, 7) * 9;
  const std::uint64_t t = state_[1] << 17;
  state_[2] ^= state_[0];
  state_[3] ^= state_[1];
  state_[1] ^= state_[2];
  state_[0] ^= state_[3];
  state_[2] ^= t;
  state_[3] = std::rotl(state_[3], 45);
  return result;
}

Sampler::Sampler(const SamplerOptions& options) : options_(checked(options)), random_(options.seed) {}

void Sampler::accept(TokenId id) {
  if (id < 0) throw InvalidArgument(fmt::format("id: {}, needed 0 or more", id));
  if (options_.repetition_penalty == 1.0f || options_.repetition_window == 0) return;
  ++seen_[id];
  if (options_.repetition_window < 0) return;
  if (recent_.size() < static_cast<std::size_t>(options_.repetition_window)) {
    recent_.push_back(id);
    return;
  }
  const auto forgotten = seen_.find(recent_[oldest_]);
  if (--forgotten->second == 0) seen_.erase(forgotten);
  recent_[oldest_] = id;
  oldest_ = (oldest_ + 1) % recent_.size();
}

std::span<const float> Sampler::penalised(std::span<const float> logits) {
  if (seen_.empty()) return logits;
  adjusted_.assign(logits.begin(), logits.end());
  for (const auto& [id, count] : seen_) {
    if (static_cast<std::size_t>(id) >= logits.size()) {
      throw InvalidArgument(fmt::format("logits: {} elements, but token {} was accepted", logits.size(), id));
    }
    float& logit = adjusted_[static_cast<std::size_t>(id)];
    if (!std::isfinite(logit)) continue;
    constexpr float kMax = std::numeric_limits<float>::max();
    const float penalty = options_.repetition_penalty;
    logit = std::clamp(logit > 0 ? logit / penalty : logit * penalty, -kMax, kMax);
  }
  return adjusted_;
}

void Sampler::weigh_top_k(std::span<const float> logits, float best) {
  // A heap of the k best with the worst in front: nearly all of a vocabulary is refused by one compare.
  const auto k = static_cast<std::size_t>(options_.top_k);
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const Candidate candidate{logits[i], 0, static_cast<TokenId>(i)};
    if (candidates_.size() == k) {
      if (!(candidate < candidates_.front())) continue;
      std::pop_heap(candidates_.begin(), candidates_.end());
      candidates_.back() = candidate;
    } else {
      candidates_.push_back(candidate);
    }
    std::push_heap(candidates_.begin(), candidates_.end());
  }
  std::sort(candidates_.begin(), candidates_.end());  // the draw must not depend on how a heap is laid out
  for (Candidate& c : candidates_) c.weight = exp_of_negative((c.logit - best) / options_.temperature);
}

void Sampler::weigh_all(std::span<const float> logits, float best) {
  weights_.resize(logits.size());
  for (std::size_t i = 0; i < logits.size(); ++i) {
    weights_[i] = exp_of_negative((logits[i] - best) / options_.temperature);
  }
}

void Sampler::keep_heaviest(std::span<const float> logits, double total) {
  // All tokens lighter than (1 - p) total / n weigh less together than what top_p may leave out; the hundredth part
  // taken off covers rounding.
  const double spare = (1.0 - static_cast<double>(options_.top_p)) * total / static_cast<double>(logits.size());
  const auto least = static_cast<float>(std::max<double>(options_.min_p, 0.99 * spare));
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (weights_[i] >= least) candidates_.push_back({logits[i], weights_[i], static_cast<TokenId>(i)});
  }
}

void Sampler::keep_top_p(double total) {
  const double needed = static_cast<double>(options_.top_p) * total;
  // The likeliest are put in front piece by piece until they reach p: usually the first piece does.
  double sum = 0;
  for (std::size_t done = 0, piece = 64; done < candidates_.size(); piece *= 4) {
    const std::size_t end = std::min(candidates_.size(), done + piece);
    const auto first = candidates_.begin() + static_cast<std::ptrdiff_t>(done);
    const auto last = candidates_.begin() + static_cast<std::ptrdiff_t>(end);
    if (end < candidates_.size()) std::nth_element(first, last, candidates_.end());
    std::sort(first, last);
    for (; done < end; ++done) {
      sum += static_cast<double>(candidates_[done].weight);
      if (sum >= needed) return candidates_.resize(done + 1);
    }
  }
}

TokenId Sampler::draw() {
  weights_.clear();
  for (const Candidate& candidate : candidates_) weights_.push_back(candidate.weight);
  return candidates_[draw_position(sum_of(weights_))].id;
}

std::size_t Sampler::draw_position(double total) {
  double left = random_.uniform() * total;
  std::size_t last = 0;
  for (std::size_t i = 0; i < weights_.size(); ++i) {
    if (weights_[i] == 0) continue;
    last = i;
    left -= static_cast<double>(weights_[i]);
    if (left < 0) break;
  }
  return last;
}

TokenId Sampler::sample(std::span<const float> logits) {
  const std::span<const float> adjusted = penalised(logits);
  const float best = best_logit(adjusted);
  if (options_.temperature == 0) {
    return static_cast<TokenId>(std::find(adjusted.begin(), adjusted.end(), best) - adjusted.begin());
  }
  candidates_.clear();
  if (options_.top_k > 0 && static_cast<std::size_t>(options_.top_k) < adjusted.size()) {
    weigh_top_k(adjusted, best);
    if (options_.top_p < 1) {
      double total = 0;
      for (const Candidate& candidate : candidates_) total += static_cast<double>(candidate.weight);
      keep_top_p(total);
    }
    std::erase_if(candidates_, [&](const Candidate& c) { return c.weight < options_.min_p; });
    return draw();
  }
  weigh_all(adjusted, best);
  const double total = sum_of(weights_);
  if (options_.top_p == 1 && options_.min_p == 0) return static_cast<TokenId>(draw_position(total));
  keep_heaviest(adjusted, total);
  if (options_.top_p < 1) keep_top_p(total);
  return draw();
}

}  // namespace ops_transformer::llm
