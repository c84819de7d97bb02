// SPDX-License-Identifier: Apache-2.0
#include "llm/architecture.h"

#include <fmt/format.h>

#include "llm/tokenizer/utf8.h"

namespace ops_transformer::llm {

const Architecture& find_architecture(std::string_view name) {
  std::string known;
  for (const Architecture* architecture : {&kLlama, &kQwen2, &kQwen3, &kGemma3}) {
    if (architecture->name == name) return *architecture;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", architecture->name);
  }
  throw InvalidFile(fmt::format("unsupported architecture '{}'; supported: {}", shown(name), known));
}

}  // namespace ops_transformer::llm
