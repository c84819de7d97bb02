// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "ops_transformer/base/export.h"

namespace ops_transformer {

// How a model that was trained on short contexts turns at long ones. Linear scaling is RopeOptions::position_scale.
// d is rotary_dim, f the unscaled frequency of a pair in radians a position.

/// NTK-aware scaling (bloc97, 2023): theta becomes theta * factor^(d / (d - 2)), so that the slowest pair turns
/// `factor` times slower and the fastest one as before. d >= 4.
struct NtkScaling {
  double factor = 1.0;  // >= 1

  bool operator==(const NtkScaling&) const = default;
};

/// Llama 3.1 (Grattafiori et al., 2024): a pair that turns less than low_frequency_factor times in the original context
/// turns f / factor, one that turns more than high_frequency_factor times f, those between a blend by their turns.
struct OPS_TRANSFORMER_API Llama3Scaling {
  double factor = 8.0;  // >= 1
  double low_frequency_factor = 1.0;
  double high_frequency_factor = 4.0;  // above the low one
  std::int64_t original_context_len = 8192;

  /// How much of f stays: 1 all, 0 none, which leaves f / factor.
  long double share_kept(long double f) const;
  bool operator==(const Llama3Scaling&) const = default;
};

/// YaRN (Peng et al., 2023): pairs that turn at least beta_fast times in the original context keep f, those that turn
/// beta_slow times or less turn f / factor, those between a blend by their index; cos and sin are multiplied by
/// attention_factor.
struct OPS_TRANSFORMER_API YarnScaling {
  double factor = 1.0;                       // >= 1
  std::int64_t original_context_len = 0;     // at least 1
  double beta_fast = 32.0, beta_slow = 1.0;  // beta_fast above beta_slow
  std::optional<double> attention_factor{};  // unset: default_attention_factor

  double default_attention_factor() const;  // 0.1 ln(factor) + 1
  bool operator==(const YarnScaling&) const = default;
};

using RopeScaling = std::variant<std::monostate, NtkScaling, Llama3Scaling, YarnScaling>;

/// Frequencies of the d / 2 pairs, and what their cosines and sines are multiplied by.
struct RopeFrequencies {
  std::vector<long double> radians;  // a position
  double amplitude = 1.0;
};

/// Throws InvalidArgument: a member of the scaling out of range. theta and rotary_dim are RopeOptions', valid.
RopeFrequencies rope_frequencies(double theta, std::int64_t rotary_dim, const RopeScaling& scaling);

}  // namespace ops_transformer
