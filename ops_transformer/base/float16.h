// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>

namespace ops_transformer {

/// Storage of one bfloat16 / IEEE half value. Arithmetic happens in float.
struct BFloat16 {
  std::uint16_t bits;
};
struct Float16 {
  std::uint16_t bits;
};

inline float to_float(float x) noexcept { return x; }
inline float to_float(BFloat16 x) noexcept { return std::bit_cast<float>(std::uint32_t{x.bits} << 16); }

inline float to_float(Float16 x) noexcept {
  const std::uint32_t sign = std::uint32_t(x.bits & 0x8000u) << 16, magnitude = x.bits & 0x7fffu;
  if (magnitude >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  if (magnitude >= 0x400u) return std::bit_cast<float>(sign | ((magnitude << 13) + 0x38000000u));
  const float subnormal = float(magnitude) * 0x1p-24f;
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(subnormal));
}

/// Round to nearest, ties to even; NaN stays NaN (quiet).
inline BFloat16 to_bfloat16(float x) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {std::uint16_t((bits >> 16) | 0x40u)};
  return {std::uint16_t((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

inline Float16 to_float16(float x) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const auto sign = std::uint16_t(bits >> 16 & 0x8000u);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return {std::uint16_t(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu))};
  if (magnitude >= 0x477ff000u) return {std::uint16_t(sign | 0x7c00u)};
  if (magnitude >= 0x38800000u) {
    return {std::uint16_t(sign | (((magnitude + 0xfffu + (magnitude >> 13 & 1u)) >> 13) - (112u << 10)))};
  }
  // The addition rounds at the weight of half's last subnormal bit.
  const float rounded = std::bit_cast<float>(magnitude) + 0.5f;
  return {std::uint16_t(sign | (std::bit_cast<std::uint32_t>(rounded) - 0x3f000000u))};
}

}  // namespace ops_transformer
