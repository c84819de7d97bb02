// SPDX-License-Identifier: Apache-2.0
#include "llm/formats/quantise.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "ops_transformer/base/float16.h"

namespace ops_transformer::llm {
namespace {

constexpr std::size_t kBlock = 32;

void store(std::byte* at, Float16 value) { std::memcpy(at, &value.bits, sizeof value.bits); }
bool holds(Float16 value) { return std::isfinite(to_float(value)); }
float inverse(float d) { return d == 0 ? 0.0f : 1 / d; }

// Two values a byte: the block's first half in the low bits.
void store_nibbles(std::byte* at, const std::uint8_t (&codes)[kBlock]) {
  for (std::size_t i = 0; i < kBlock / 2; ++i) at[i] = std::byte(codes[i] | codes[i + kBlock / 2] << 4);
}

// The three below: one block; false where its scale passes f16's range.
bool quantise_q8_0(const float* x, std::byte* out) {
  float largest = 0;
  for (std::size_t i = 0; i < kBlock; ++i) largest = std::max(largest, std::fabs(x[i]));
  const float d = largest / 127, scale = inverse(d);
  store(out, to_float16(d));
  for (std::size_t i = 0; i < kBlock; ++i) out[2 + i] = std::byte(std::int8_t(std::round(x[i] * scale)));
  return holds(to_float16(d));
}

bool quantise_q4_0(const float* x, std::byte* out) {
  float largest = x[0];  // with its sign; the first of equals
  for (std::size_t i = 1; i < kBlock; ++i) {
    if (std::fabs(x[i]) > std::fabs(largest)) largest = x[i];
  }
  const float d = largest / -8, scale = inverse(d);
  std::uint8_t codes[kBlock];
  for (std::size_t i = 0; i < kBlock; ++i) codes[i] = std::uint8_t(std::clamp(x[i] * scale + 8.5f, 0.0f, 15.0f));
  store(out, to_float16(d));
  store_nibbles(out + 2, codes);
  return holds(to_float16(d));
}

bool quantise_q4_1(const float* x, std::byte* out) {
  const auto [low, high] = std::minmax_element(x, x + kBlock);
  const float d = (*high - *low) / 15, scale = inverse(d);
  std::uint8_t codes[kBlock];
  for (std::size_t i = 0; i < kBlock; ++i)
    codes[i] = std::uint8_t(std::clamp((x[i] - *low) * scale + 0.5f, 0.0f, 15.0f));
  store(out, to_float16(d));
  store(out + 2, to_float16(*low));
  store_nibbles(out + 4, codes);
  return holds(to_float16(d)) && holds(to_float16(*low));
}

std::optional<float> quantise_plain(DType dtype, std::span<const float> values, std::span<std::byte> out) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    const bool half = dtype == DType::f16;
    const std::uint16_t bits = half ? to_float16(values[i]).bits : to_bfloat16(values[i]).bits;
    if (!std::isfinite(half ? to_float(Float16{bits}) : to_float(BFloat16{bits}))) return values[i];
    std::memcpy(out.data() + 2 * i, &bits, sizeof bits);
  }
  return std::nullopt;
}

}  // namespace

bool can_quantise(DType dtype) noexcept {
  return is_float(dtype) || dtype == DType::q8_0 || dtype == DType::q4_0 || dtype == DType::q4_1;
}

std::optional<float> quantise_row(DType dtype, std::span<const float> values, std::span<std::byte> out) {
  for (const float value : values) {
    if (!std::isfinite(value)) return value;
  }
  if (dtype == DType::f32) {
    std::memcpy(out.data(), values.data(), values.size_bytes());
    return std::nullopt;
  }
  if (is_float(dtype)) return quantise_plain(dtype, values, out);
  const std::size_t block_bytes = dtype_info(dtype).block_bytes;
  for (std::size_t i = 0; i < values.size() / kBlock; ++i) {
    const float* x = values.data() + i * kBlock;
    std::byte* to = out.data() + i * block_bytes;
    const bool fits = dtype == DType::q8_0   ? quantise_q8_0(x, to)
                      : dtype == DType::q4_0 ? quantise_q4_0(x, to)
                                             : quantise_q4_1(x, to);
    if (!fits) return *std::max_element(x, x + kBlock, [](float a, float b) { return std::fabs(a) < std::fabs(b); });
  }
  return std::nullopt;
}

}  // namespace ops_transformer::llm
