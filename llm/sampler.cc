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

void Sampler::keep_all(std::span<const float> logits) {
  candidates_.clear();
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] > -kInfinity) candidates_.push_back({logits[i], static_cast<TokenId>(i), 0});
  }
}

void Sampler::keep_top_k(std::span<const float> logits) {
  // A heap of the k best with the worst in front: nearly all of a vocabulary is refused by one compare.
  const auto k = static_cast<std::size_t>(options_.top_k);
  candidates_.clear();
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const Candidate candidate{logits[i], static_cast<TokenId>(i), 0};
    if (logits[i] == -kInfinity) continue;
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
}

void Sampler::keep_top_p() {
  double total = 0;
  for (const Candidate& candidate : candidates_) total += candidate.weight;
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
      sum += candidates_[done].weight;
      if (sum >= needed) return candidates_.resize(done + 1);
    }
  }
}

TokenId Sampler::draw() {
  std::erase_if(candidates_, [&](const Candidate& c) { return c.weight < options_.min_p; });
  double total = 0;
  for (const Candidate& candidate : candidates_) total += candidate.weight;
  double left = random_.uniform() * total;
  TokenId last = candidates_.front().id;
  for (const Candidate& candidate : candidates_) {
    if (candidate.weight == 0) continue;
    last = candidate.id;
    if (left < candidate.weight) break;
    left -= candidate.weight;
  }
  return last;
}

TokenId Sampler::sample(std::span<const float> logits) {
  const std::span<const float> adjusted = penalised(logits);
  const float best = best_logit(adjusted);
  if (options_.temperature == 0) {
    return static_cast<TokenId>(std::find(adjusted.begin(), adjusted.end(), best) - adjusted.begin());
  }
  if (options_.top_k > 0 && static_cast<std::size_t>(options_.top_k) < adjusted.size()) {
    keep_top_k(adjusted);
  } else {
    keep_all(adjusted);
  }
  for (Candidate& candidate : candidates_) {
    candidate.weight = std::exp((static_cast<double>(candidate.logit) - best) / options_.temperature);
  }
  if (options_.top_p < 1) keep_top_p();
  return draw();
}

}  // namespace ops_transformer::llm
