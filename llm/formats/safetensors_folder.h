// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "llm/formats/model_file.h"

namespace ops_transformer::llm {

/// True for a folder and for a path that ends in .safetensors or .safetensors.index.json.
bool is_safetensors_folder(const std::string& path);

/// A folder as Transformers writes it: config.json, tokenizer.json (with tokenizer_config.json and chat_template.jinja
/// where they are there), and model.safetensors or the shards that model.safetensors.index.json names. A path to a
/// .safetensors file or to the index stands for its folder. Metadata and tensors come out under GGUF's keys and names
/// (hf_config.h, hf_tensors.h, hf_tokenizer.h). Throws InvalidFile or SystemFailure, naming the file and the part.
ModelFileParts read_safetensors_folder(const std::string& path);

}  // namespace ops_transformer::llm
