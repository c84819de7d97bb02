// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace ops_transformer::llm {

/// An Oniguruma pattern as one of PCRE2 (UTF, UCP, MULTILINE) with the same matches. What backtracks over a whole text
/// in the patterns of known models is put in a form that does not. Throws InvalidFile, naming pattern and construct.
std::string translate_regex(std::string_view pattern);

}  // namespace ops_transformer::llm
