// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/gemm/quantised_reference.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace ops_transformer::reference {
namespace {

double half(const unsigned char* p) {
  const int bits = p[0] | p[1] << 8, exponent = bits >> 10 & 31, fraction = bits & 1023;
  const double magnitude = exponent == 0    ? std::ldexp(fraction, -24)
                           : exponent == 31 ? (fraction ? std::nan("") : std::numeric_limits<double>::infinity())
                                            : std::ldexp(1024 + fraction, exponent - 25);
  return bits & 0x8000 ? -magnitude : magnitude;
}

// Scale or minimum `i` of the eight of Q4_K and Q5_K: six bits each, the last four with their upper two bits elsewhere.
int six_bits(const unsigned char* p, int i, bool minimum) {
  if (i < 4) return p[i + 4 * minimum] & 63;
  return (minimum ? p[i + 4] >> 4 : p[i + 4] & 15) | p[i - 4 + 4 * minimum] >> 6 << 4;
}

// Element j of a block.
double element(DType dtype, const unsigned char* p, int j) {
  const int bit = j % 256 / 128 * 4 + j % 128 / 32;  // run of 32 elements, of eight in a block of 256
  const auto nibble = [j](const unsigned char* codes) { return j < 16 ? codes[j] % 16 : codes[j - 16] / 16; };
  const auto run_nibble = [j](const unsigned char* codes) {
    return codes[j / 64 * 32 + j % 32] >> j / 32 % 2 * 4 & 15;
  };
  const auto pair = [j](const unsigned char* codes) { return codes[j / 128 * 32 + j % 32] >> j / 32 % 4 * 2 & 3; };
  switch (dtype) {
    case DType::q4_0:
      return half(p) * (nibble(p + 2) - 8);
    case DType::q4_1:
      return half(p) * nibble(p + 4) + half(p + 2);
    case DType::q5_0:
      return half(p) * (nibble(p + 6) + (p[2 + j / 8] >> j % 8 & 1) * 16 - 16);
    case DType::q5_1:
      return half(p) * (nibble(p + 8) + (p[4 + j / 8] >> j % 8 & 1) * 16) + half(p + 2);
    case DType::q8_0:
      return half(p) * static_cast<signed char>(p[2 + j]);
    case DType::q2_k:
      return half(p + 80) * (p[j / 16] & 15) * pair(p + 16) - half(p + 82) * (p[j / 16] >> 4);
    case DType::q3_k: {
      const int i = j / 16, scale = (p[96 + i % 8] >> i / 8 * 4 & 15) | (p[104 + i % 4] >> i / 4 * 2 & 3) << 4;
      return half(p + 108) * (scale - 32) * (pair(p + 32) - ((p[j % 32] >> bit & 1) ? 0 : 4));
    }
    case DType::q4_k:
      return half(p) * six_bits(p + 4, bit, false) * run_nibble(p + 16) - half(p + 2) * six_bits(p + 4, bit, true);
    case DType::q5_k:
      return half(p) * six_bits(p + 4, bit, false) * (run_nibble(p + 48) + (p[16 + j % 32] >> bit & 1) * 16) -
             half(p + 2) * six_bits(p + 4, bit, true);
    default: {  // q6_k
      const int low = p[j / 128 * 64 + j % 64] >> j / 64 % 2 * 4 & 15;
      return half(p + 208) * static_cast<signed char>(p[192 + j / 16]) * (low + pair(p + 128) * 16 - 32);
    }
  }
}

}  // namespace

std::vector<double> dequantise_row(DType dtype, const void* row, std::int64_t num_elements) {
  const auto* bytes = static_cast<const unsigned char*>(row);
  const DTypeInfo& info = dtype_info(dtype);
  std::vector<double> out;
  for (std::size_t i = 0; i < std::size_t(num_elements); ++i)
    out.push_back(element(dtype, bytes + i / info.block_len * info.block_bytes, int(i % info.block_len)));
  return out;
}

HalvesOfBlock halves_of_block(DType dtype) {
  switch (dtype) {
    case DType::q4_1:
    case DType::q5_1:
    case DType::q4_k:
    case DType::q5_k:
      return {0, 2};
    case DType::q2_k:
      return {80, 82};
    case DType::q3_k:
      return {108, -1};
    case DType::q6_k:
      return {208, -1};
    default:
      return {0, -1};
  }
}

void set_sub_scales_to_one(DType dtype, void* block) {
  auto* p = static_cast<unsigned char*>(block);
  if (dtype == DType::q2_k) std::fill_n(p, 16, 0x11);
  if (dtype == DType::q3_k) {
    std::fill_n(p + 96, 8, 0x11);
    std::fill_n(p + 104, 4, 0xaa);
  }
  if (dtype == DType::q4_k || dtype == DType::q5_k) {
    std::fill_n(p + 4, 8, 1);
    std::fill_n(p + 12, 4, 0x11);
  }
  if (dtype == DType::q6_k) std::fill_n(p + 192, 16, 1);
}

QuantisedRow quantise_row(const std::vector<float>& x) {
  QuantisedRow row;
  for (std::size_t begin = 0; begin < x.size(); begin += 32) {
    const std::size_t end = std::min(x.size(), begin + 32);
    float most = 0;
    bool finite = true;
    for (std::size_t i = begin; i < end; ++i) {
      most = std::max(most, std::fabs(x[i]));
      finite = finite && std::isfinite(x[i]);
    }
    row.scales.push_back(finite ? most / 127.0f : std::numeric_limits<float>::quiet_NaN());
    for (std::size_t i = begin; i < end; ++i) {
      // Scaled so that 127 / most stays within the range of float.
      const int up = most < 0x1p-100f ? 100 : 0;
      const float inverse = most > 0 ? 127.0f / std::ldexp(most, up) : 0.0f;
      row.codes.push_back(finite ? int(std::nearbyint(std::ldexp(x[i], up) * inverse)) : 0);
    }
  }
  return row;
}

std::vector<double> values(const QuantisedRow& row) {
  std::vector<double> out;
  for (std::size_t i = 0; i < row.codes.size(); ++i) out.push_back(double(row.scales[i / 32]) * row.codes[i]);
  return out;
}

}  // namespace ops_transformer::reference
