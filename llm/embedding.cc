// SPDX-License-Identifier: Apache-2.0
#include "llm/embedding.h"

#include "ops_transformer/gemm/dequantise.h"

namespace ops_transformer::llm {

void Embedding::look_up(Arena& arena, std::span<const std::int32_t> tokens, const TensorView& x) const {
  const std::size_t row_bytes = table_.bytes / table_.rows();
  const auto hidden = std::int64_t(table_.cols());
  const auto row = arena.allocate<std::byte>(row_bytes);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    file_.read(table_, std::size_t(tokens[i]) * row_bytes, row);
    dequantise_rows(table_.dtype, row.data(), hidden, x.as<float>() + std::int64_t(i) * hidden);
  }
}

}  // namespace ops_transformer::llm
