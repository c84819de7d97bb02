// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "llm/tokenizer/tokenizer_data.h"

namespace ops_transformer::llm {

/// What GGUF means by a name in `tokenizer.ggml.pre`: the normalizer and pre-tokenizer that the models' tokenizer.json
/// have.
struct PreTokenizerRule {
  std::vector<std::string_view> names;  // the first is the one to write
  std::vector<NormalizerStep> normalizers;
  std::vector<SplitStep> splits;
  bool takes_whole_tokens = false;
  bool adds_bos = false;  // where the file does not say
};

/// GPT-2's pattern, which tokenizer.json's ByteLevel has built in.
std::string_view gpt2_pattern();
std::span<const PreTokenizerRule> pre_tokenizer_rules();
/// Throws InvalidFile, which names the rule and the known ones.
const PreTokenizerRule& find_pre_tokenizer_rule(std::string_view name);

}  // namespace ops_transformer::llm
