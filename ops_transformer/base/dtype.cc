// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/base/dtype.h"

#include <array>

namespace ops_transformer {
namespace {

// clang-format off
constexpr std::array<DTypeInfo, kNumDTypes> kInfo = {{
    {"f32", 1, 4, 0},
    {"f16", 1, 2, 1},
    {"bf16", 1, 2, 30},
    {"s8", 1, 1, 24},
    {"u8", 1, 1, -1},
    {"i32", 1, 4, 26},
    {"i64", 1, 8, 27},
    {"bool", 1, 1, -1},
    {"s4", 2, 1, -1},
    {"q4_0", 32, 18, 2},
    {"q4_1", 32, 20, 3},
    {"q5_0", 32, 22, 6},
    {"q5_1", 32, 24, 7},
    {"q8_0", 32, 34, 8},
    {"q2_k", 256, 84, 10},
    {"q3_k", 256, 110, 11},
    {"q4_k", 256, 144, 12},
    {"q5_k", 256, 176, 13},
    {"q6_k", 256, 210, 14},
}};
// clang-format on

}  // namespace

const DTypeInfo& dtype_info(DType dtype) noexcept { return kInfo[static_cast<std::size_t>(dtype)]; }

std::optional<DType> dtype_from_ggml(std::uint32_t ggml_type) noexcept {
  for (int i = 0; i < kNumDTypes; ++i) {
    if (kInfo[i].ggml_type >= 0 && static_cast<std::uint32_t>(kInfo[i].ggml_type) == ggml_type) {
      return static_cast<DType>(i);
    }
  }
  return std::nullopt;
}

}  // namespace ops_transformer
