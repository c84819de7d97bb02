// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>

#include "llm/formats/gguf_metadata.h"
#include "llm/formats/hf_config.h"
#include "llm/formats/json_file.h"

namespace ops_transformer::llm {

/// Adds a folder's tokenizer.json, tokenizer_config.json and chat template to `metadata` under GGUF's keys, its
/// vocabulary filled up to the rows of the embedding. Throws InvalidFile or SystemFailure.
void add_hf_tokenizer(const std::filesystem::path& folder, const JsonObject& config, const HfModel& model,
                      GgufMetadataBuilder& metadata);

}  // namespace ops_transformer::llm
