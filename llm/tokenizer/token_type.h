// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace ops_transformer::llm {

/// Kinds of token, as GGUF numbers them. Control and unknown tokens stand for something other than their text and are
/// never made from it unless the caller asks; user-defined ones are text that is always taken whole.
enum class TokenType : std::uint8_t { undefined, normal, unknown, control, user_defined, unused, byte };

}  // namespace ops_transformer::llm
