// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace ops_transformer::llm {

using TokenId = std::int32_t;

}  // namespace ops_transformer::llm
