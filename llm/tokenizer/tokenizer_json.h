// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "llm/tokenizer/tokenizer_data.h"
#include "ops_transformer/base/export.h"

namespace ops_transformer::llm {

/// Reads the text of a tokenizer.json of Hugging Face's `tokenizers`, and of the tokenizer_config.json beside it where
/// there is one: models BPE (byte-level, or over characters with or without byte fallback) and Unigram; normalizers
/// NFC, NFD, NFKC, NFKD, Lowercase, Strip, Replace, Prepend; pre-tokenizers ByteLevel, Split, Digits, Metaspace,
/// Whitespace, WhitespaceSplit, Punctuation, CharDelimiterSplit; sequences of both; added tokens with their flags; BOS
/// and EOS of TemplateProcessing or of the configuration, which wins. How text is decoded follows from the model: the
/// decoder, truncation and padding are not read.
/// Throws InvalidFile, which names the part: what is not in this list or not of its form, ids that stand twice or leave
/// more than 65536 holes, merges of what are no tokens. Holes become tokens of type unused.
OPS_TRANSFORMER_API TokenizerData read_tokenizer_json(std::string_view tokenizer, std::string_view config = {});

}  // namespace ops_transformer::llm
