// SPDX-License-Identifier: Apache-2.0
#include "llm/embedding.h"

#include <algorithm>

#include "ops_transformer/gemm/dequantise.h"

namespace ops_transformer::llm {

void Embedding::look_up(Arena& arena, std::span<const std::int32_t> tokens, const TensorView& x, float scale) const {
  const std::size_t row_bytes = table_.bytes / table_.rows();
  const auto hidden = std::int64_t(table_.cols());
  const auto row = arena.allocate<std::byte>(row_bytes);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    file_.read(table_, std::size_t(tokens[i]) * row_bytes, row);
    float* out = x.as<float>() + std::int64_t(i) * hidden;
    dequantise_rows(table_.dtype, row.data(), hidden, out);
    if (scale != 1.0f) std::for_each_n(out, hidden, [scale](float& value) { value *= scale; });
  }
}

}  // namespace ops_transformer::llm
