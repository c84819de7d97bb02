// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "llm/model_file.h"

namespace ops_transformer::llm {

using GgufFile = ModelFile;
using GgufTensor = ModelTensor;

}  // namespace ops_transformer::llm
