// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "llm/formats/json_file.h"
#include "llm/tokenizer/tokenizer_data.h"

namespace ops_transformer::llm {

/// What a tokenizer.json does to text before its model sees it.
struct TokenizerRules {
  std::vector<NormalizerStep> normalizers;
  std::vector<SplitStep> splits;
  bool byte_level = false;  // the model works on bytes
};

/// Reads "normalizer" and "pre_tokenizer". Throws InvalidFile, naming what is not supported.
TokenizerRules read_tokenizer_rules(const JsonObject& file);

/// Where GGUF's own keys can say all of `data`, puts them in place of its rules and gives true; else false.
bool name_tokenizer_rules(TokenizerData& data);

}  // namespace ops_transformer::llm
