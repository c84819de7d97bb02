// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/gemm/dequantise.h"

#include <fmt/format.h>

#include <cstring>

#include "ops_transformer/base/float16.h"
#include "ops_transformer/base/validate.h"

namespace ops_transformer {
namespace {

float half_at(const std::uint8_t* p) noexcept {
  Float16 half;
  std::memcpy(&half, p, sizeof half);
  return to_float(half);
}

// Nibble j of a block is element j in its low and element j + 16 in its high half.
void dequantise_nibbles(const std::uint8_t* codes, float scale, float zero, float offset, float* out) noexcept {
  for (int j = 0; j < 16; ++j) {
    out[j] = scale * (float(codes[j] & 15) - zero) + offset;
    out[j + 16] = scale * (float(codes[j] >> 4) - zero) + offset;
  }
}

template <class T>
void widen(const void* rows, std::int64_t n, float* out) noexcept {
  const auto* bytes = static_cast<const std::uint8_t*>(rows);
  for (std::int64_t i = 0; i < n; ++i) {
    T value;
    std::memcpy(&value, bytes + i * std::int64_t(sizeof(T)), sizeof(T));
    out[i] = to_float(value);
  }
}

}  // namespace

void dequantise_rows(DType dtype, const void* rows, std::int64_t num_elements, float* out) {
  const auto block_len = std::int64_t(dtype_info(dtype).block_len);
  if (num_elements < 0 || num_elements % block_len != 0) {
    invalid("dequantise_rows", fmt::format("num_elements is {}, must be a multiple of {} for {}", num_elements,
                                           block_len, dtype_name(dtype)));
  }
  if (dtype == DType::f32) return widen<float>(rows, num_elements, out);
  if (dtype == DType::bf16) return widen<BFloat16>(rows, num_elements, out);
  if (dtype == DType::f16) return widen<Float16>(rows, num_elements, out);
  if (dtype != DType::q4_0 && dtype != DType::q4_1 && dtype != DType::q8_0) {
    invalid("dequantise_rows",
            fmt::format("dtype is {}, must be f32, bf16, f16, q4_0, q4_1 or q8_0", dtype_name(dtype)));
  }
  const auto* block = static_cast<const std::uint8_t*>(rows);
  for (std::int64_t i = 0; i < num_elements; i += block_len, block += dtype_info(dtype).block_bytes) {
    const float scale = half_at(block);
    if (dtype == DType::q4_0) {
      dequantise_nibbles(block + 2, scale, 8.0f, 0.0f, out + i);
    } else if (dtype == DType::q4_1) {
      dequantise_nibbles(block + 4, scale, 0.0f, half_at(block + 2), out + i);
    } else {
      for (int j = 0; j < 32; ++j) out[i + j] = scale * float(std::int8_t(block[2 + j]));
    }
  }
}

}  // namespace ops_transformer
