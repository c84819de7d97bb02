// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "ops_transformer/base/export.h"

namespace ops_transformer {

/// Element types. Those from q4_0 on are the block-quantised types of GGUF: their unit is a block of elements along the
/// last dimension. s4 is two to a byte, the even index in the low bits.
enum class DType : std::uint8_t {
  f32,
  f16,
  bf16,
  s8,
  u8,
  i32,
  i64,
  boolean,
  s4,
  q4_0,
  q4_1,
  q5_0,
  q5_1,
  q8_0,
  q2_k,
  q3_k,
  q4_k,
  q5_k,
  q6_k,
};
inline constexpr int kNumDTypes = 19;

struct DTypeInfo {
  std::string_view name;
  std::size_t block_len;    // elements in a block; 1 for plain types, 2 for s4
  std::size_t block_bytes;  // bytes of a block
  int ggml_type;            // type id in GGUF files; -1 where GGUF has none
};

OPS_TRANSFORMER_API const DTypeInfo& dtype_info(DType dtype) noexcept;
OPS_TRANSFORMER_API std::optional<DType> dtype_from_ggml(std::uint32_t ggml_type) noexcept;

inline std::string_view dtype_name(DType dtype) noexcept { return dtype_info(dtype).name; }
inline bool is_block_quantised(DType dtype) noexcept { return dtype >= DType::q4_0; }
inline bool is_float(DType dtype) noexcept { return dtype <= DType::bf16; }

/// Bytes of one element of a plain type.
inline std::size_t element_bytes(DType dtype) noexcept { return dtype_info(dtype).block_bytes; }

}  // namespace ops_transformer
