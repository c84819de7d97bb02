// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "llm/formats/model_file.h"

namespace ops_transformer::llm {

/// Throws InvalidFile as ModelFile::open does.
ModelFileParts read_gguf(MappedFile file);

}  // namespace ops_transformer::llm
