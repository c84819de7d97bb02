// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "llm/tokenizer/token_id.h"
#include "ops_transformer/base/export.h"

namespace ops_transformer::llm {

/// The steps run in this order, each on what the one before left: repetition penalty, temperature, top_k, top_p, min_p,
/// then one draw. Probabilities are those of the tokens that are left, summing to 1.
struct SamplerOptions {
  float temperature = 0.0f;  // 0: the most likely token, lowest id among equals; top_k, top_p, min_p then do nothing
  std::int32_t top_k = 0;    // keep the k most likely; 0: all
  float top_p = 1.0f;        // (0, 1]: keep the fewest of the most likely that together reach p
  float min_p = 0.0f;        // [0, 1]: keep those at least min_p times as likely as the likeliest
  float repetition_penalty = 1.0f;  // > 0: logits of seen tokens are divided (negative ones multiplied) by it; 1: off
  std::int32_t repetition_window = 64;  // how many of the last tokens count as seen; -1: all
  std::uint64_t seed = 0;
};

/// xoshiro256** 1.0 (Blackman and Vigna, arXiv:1805.01407), seeded by splitmix64: the same numbers on every machine.
class OPS_TRANSFORMER_API Random {
 public:
  explicit Random(std::uint64_t seed) noexcept;
  std::uint64_t next() noexcept;
  /// Uniform in [0, 1), 53 bits.
  double uniform() noexcept { return static_cast<double>(next() >> 11) * 0x1.0p-53; }

 private:
  std::array<std::uint64_t, 4> state_;
};

/// Picks the next token of one sequence.
class OPS_TRANSFORMER_API Sampler {
 public:
  /// Throws InvalidArgument, naming the option, its value and its limits.
  explicit Sampler(const SamplerOptions& options);

  /// One token for `logits` [vocab_size]. -inf takes a token out. Throws InvalidArgument, naming the position, for NaN
  /// or +inf, and where no token is left; the state is then as before. Call accept with the token that is kept.
  TokenId sample(std::span<const float> logits);
  /// Tells which token follows (also those of the prompt), for the repetition penalty. Throws InvalidArgument for a
  /// negative id.
  void accept(TokenId id);
  const SamplerOptions& options() const noexcept { return options_; }

 private:
  struct Candidate {
    float logit;
    float weight;  // exp((logit - best) / temperature): the likeliest weighs 1
    TokenId id;
    bool operator<(const Candidate& other) const noexcept {  // likelier first, then lower id: a total order
      return logit != other.logit ? logit > other.logit : id < other.id;
    }
  };
  std::span<const float> penalised(std::span<const float> logits);
  void weigh_top_k(std::span<const float> logits, float best);
  void weigh_all(std::span<const float> logits, float best);
  void keep_heaviest(std::span<const float> logits, double total);
  void keep_top_p(double total);
  TokenId draw();
  std::size_t draw_position(double total);

  SamplerOptions options_;
  Random random_;
  std::vector<TokenId> recent_;  // ring of the last repetition_window tokens; unused where all count
  std::size_t oldest_ = 0;
  std::unordered_map<TokenId, std::size_t> seen_;
  std::vector<float> adjusted_;
  std::vector<float> weights_;
  std::vector<Candidate> candidates_;
};

}  // namespace ops_transformer::llm
