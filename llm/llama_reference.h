// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "llm/config.h"

namespace ops_transformer::llm::reference {

/// Tensors by name, row-major, as real numbers.
using Tensors = std::map<std::string, std::vector<double>>;

/// The architectures from their definitions, in float64, one position after another: logits of every token of one
/// sequence, [tokens][vocab]. Tensors that are there take part (head norms, post norms, biases, a matrix for the
/// output).
std::vector<std::vector<double>> llama_logits(const ModelConfig& config, const Tensors& tensors,
                                              const std::vector<std::int32_t>& tokens);

}  // namespace ops_transformer::llm::reference
