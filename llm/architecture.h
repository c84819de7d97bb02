// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "llm/config_keys.h"
#include "llm/decoder_weights.h"

namespace ops_transformer::llm {

/// What tells one model architecture from another; each stands in the file of its name. The forward pass is one for
/// all (decoder.cc).
struct Architecture {
  std::string_view name;  // general.architecture
  /// Completes a config that has what all architectures share. Throws InvalidFile.
  void (*read_config)(const ConfigKeys& keys, ModelConfig& config);
  /// Throws InvalidFile: a tensor is missing or not as expected.
  DecoderWeights (*load)(WeightLoader& loader, const ModelConfig& config);
};

extern const Architecture kLlama, kQwen2, kQwen3, kGemma3;

/// Throws InvalidFile, listing the known ones.
const Architecture& find_architecture(std::string_view name);

}  // namespace ops_transformer::llm
