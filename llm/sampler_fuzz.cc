// SPDX-License-Identifier: Apache-2.0
// feeds: llm/sampler.cc
#include "llm/sampler.h"

#include <fuzzer/FuzzedDataProvider.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <vector>

#include "ops_transformer/base/error.h"
#include "tests/support/fuzz.h"

namespace ops_transformer::llm {
namespace {

/// Any bits, or a number of a usual size.
float any_float(FuzzedDataProvider& input) {
  if (input.ConsumeBool()) return static_cast<float>(input.ConsumeIntegralInRange(-40, 40)) / 4;
  const auto bits = input.ConsumeIntegral<std::uint32_t>();
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

/// In range as often as not.
float option(FuzzedDataProvider& input, float low, float high) {
  return input.ConsumeBool() ? any_float(input) : input.ConsumeFloatingPointInRange(low, high);
}

SamplerOptions any_options(FuzzedDataProvider& input) {
  SamplerOptions options;
  if (input.ConsumeBool()) options.temperature = option(input, 0, 3);
  if (input.ConsumeBool()) options.top_k = input.ConsumeIntegralInRange(-1, 20);
  if (input.ConsumeBool()) options.top_p = option(input, 0, 1);
  if (input.ConsumeBool()) options.min_p = option(input, 0, 1);
  if (input.ConsumeBool()) options.repetition_penalty = option(input, 0.5f, 2);
  if (input.ConsumeBool()) options.repetition_window = input.ConsumeIntegralInRange(-2, 6);
  options.seed = input.ConsumeIntegral<std::uint64_t>();
  return options;
}

bool allowed(const SamplerOptions& o) {
  return o.temperature >= 0 && std::isfinite(o.temperature) && o.top_k >= 0 && o.top_p > 0 && o.top_p <= 1 &&
         o.min_p >= 0 && o.min_p <= 1 && o.repetition_penalty > 0 && std::isfinite(o.repetition_penalty) &&
         o.repetition_window >= -1;
}

void check_draw(const Sampler& sampler, std::span<const float> logits, TokenId id, bool penalised) {
  FUZZ_CHECK(id >= 0 && static_cast<std::size_t>(id) < logits.size());
  const float logit = logits[static_cast<std::size_t>(id)];
  FUZZ_CHECK(logit > -std::numeric_limits<float>::infinity());
  if (penalised) return;
  const SamplerOptions& options = sampler.options();
  const auto better = std::count_if(logits.begin(), logits.end(), [&](float other) { return other > logit; });
  if (options.temperature == 0) FUZZ_CHECK(better == 0);
  if (options.top_k > 0) FUZZ_CHECK(better < options.top_k);
}

void run(FuzzedDataProvider& input) {
  const SamplerOptions options = any_options(input);
  std::optional<Sampler> sampler, twin;
  try {
    sampler.emplace(options);
    twin.emplace(options);
    FUZZ_CHECK(allowed(options));
  } catch (const InvalidArgument&) {
    FUZZ_CHECK(!allowed(options));
    return;
  }
  bool penalised = false;
  while (input.remaining_bytes() > 0) {
    std::vector<float> logits(input.ConsumeIntegralInRange<std::size_t>(0, 400), any_float(input));
    const std::size_t chosen = std::min<std::size_t>(logits.size(), input.ConsumeIntegralInRange(0, 40));
    for (std::size_t i = 0; i < chosen; ++i) logits[i * 7 % logits.size()] = any_float(input);
    const bool wrong = std::any_of(logits.begin(), logits.end(),
                                   [](float x) { return !(x < std::numeric_limits<float>::infinity()); });
    try {
      const TokenId id = sampler->sample(logits);
      FUZZ_CHECK(!wrong);
      FUZZ_CHECK(twin->sample(logits) == id);
      check_draw(*sampler, logits, id, penalised);
    } catch (const InvalidArgument&) {
      const bool none = std::all_of(logits.begin(), logits.end(),
                                    [](float x) { return x == -std::numeric_limits<float>::infinity(); });
      FUZZ_CHECK(wrong || none || penalised);
    }
    if (!input.ConsumeBool()) continue;
    const auto accepted = input.ConsumeIntegralInRange<TokenId>(-1, 300);
    try {
      sampler->accept(accepted);
      twin->accept(accepted);
      FUZZ_CHECK(accepted >= 0);
      penalised = true;
    } catch (const InvalidArgument&) {
      FUZZ_CHECK(accepted < 0);
    }
  }
}

}  // namespace
}  // namespace ops_transformer::llm

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzedDataProvider input(data, size);
  ops_transformer::llm::run(input);
  return 0;
}
