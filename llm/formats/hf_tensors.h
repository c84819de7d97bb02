// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "llm/formats/hf_config.h"
#include "llm/formats/model_file.h"
#include "llm/formats/safetensors.h"

namespace ops_transformer::llm {

/// A tensor and the number of the file that holds it.
struct HfTensor {
  SafetensorsTensor stored;
  std::size_t file;
};

/// Adds the tensors to `parts` under GGUF's names and in GGUF's layout: vectors as f32; llama's query and key rows in
/// the order of interleaved rotation; Gemma's norm weights plus one; rope_freqs.weight from the model's factors. Throws
/// InvalidFile: a tensor that has no place in the model or does not fit its sizes, one that is missing.
void add_hf_tensors(const HfModel& model, std::vector<HfTensor> tensors, ModelFileParts& parts);

}  // namespace ops_transformer::llm
