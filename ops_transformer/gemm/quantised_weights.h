// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops_transformer/base/dtype.h"
#include "ops_transformer/base/float16.h"

namespace ops_transformer {

inline constexpr int kQuantBlockLen = 32;  // inputs that share a scale of the activations

/// A quantised type as data. A weight is scale * sub_scale * (code - zero) + minimum * sub_minimum: scale and minimum
/// are f16, one for block_len inputs; the sub-scales are small integers, one for sub_len inputs (none: they are 1).
struct WeightForm {
  int low_bits, high_bits;  // of a code, stored apart
  int zero;                 // the code of 0 where there are no minima
  bool has_minimum;
  int block_len, sub_len;
  int sub_scale_bits;  // as stored: 0 none, 4 scale and minimum in one byte, 8 a byte each

  constexpr int code_bits() const { return low_bits + high_bits; }
  constexpr int num_subs() const { return block_len / sub_len; }

  // Packed, a tile of 16 outputs is its blocks one after the other, and a block is its parts of 32 inputs, then f16
  // scales [output], then f16 minima [output]. What a part needs lies in it, so that one row's reading is sequential:
  // sub-scales after all codes of a block made 77 % of a pure read where this makes 92-95 % (q6_k, Zen 4, 2 threads,
  // Dec 2026). A part:
  //   a plane of the low bits, then one of the high bits. A plane of n bits is n * 64 B: words [n][output]; the four
  //     codes of group g (inputs 4g…) are in word g % n from bit g / n * n of each byte on
  //   sub-scales [sub][output], sub-minima likewise
  constexpr int subs_of_part() const { return kQuantBlockLen / sub_len; }
  constexpr int codes_bytes() const { return 64 * code_bits(); }
  constexpr int subs_bytes() const { return 16 * subs_of_part(); }
  constexpr int part_bytes() const {
    return codes_bytes() + (sub_scale_bits == 0                  ? 0
                            : sub_scale_bits == 8 && has_minimum ? 2 * subs_bytes()
                                                                 : subs_bytes());
  }
  constexpr int part_at(int sub) const { return sub / subs_of_part() * part_bytes(); }
  constexpr int sub_scales_at(int sub) const { return part_at(sub) + codes_bytes() + sub % subs_of_part() * 16; }
  constexpr int sub_minima_at(int sub) const { return sub_scales_at(sub) + (sub_scale_bits == 8 ? subs_bytes() : 0); }
  constexpr int scales_at() const { return block_len / kQuantBlockLen * part_bytes(); }
  constexpr int block_bytes() const { return scales_at() + (has_minimum ? 64 : 32); }
};

constexpr WeightForm weight_form(DType dtype) noexcept {
  switch (dtype) {
    case DType::q4_0:
      return {4, 0, 8, false, 32, 32, 0};
    case DType::q4_1:
      return {4, 0, 0, true, 32, 32, 0};
    case DType::q5_0:
      return {4, 1, 16, false, 32, 32, 0};
    case DType::q5_1:
      return {4, 1, 0, true, 32, 32, 0};
    case DType::q2_k:
      return {2, 0, 0, true, 256, 16, 4};
    case DType::q3_k:
      return {2, 1, 4, false, 256, 16, 8};
    case DType::q4_k:
      return {4, 0, 0, true, 256, 32, 8};
    case DType::q5_k:
      return {4, 1, 0, true, 256, 32, 8};
    case DType::q6_k:
      return {4, 2, 32, false, 256, 16, 8};
    default:
      return {8, 0, 128, false, 32, 32, 0};  // q8_0, its codes shifted to 0…255
  }
}

/// A block of a GGUF tensor taken apart.
struct WeightBlock {
  std::uint32_t codes[64];  // a byte each, in the order of the inputs
  std::int8_t sub_scales[16], sub_minima[16];
  Float16 scale, minimum;
};
/// Reads the parts that the type has; any bytes are a valid block.
void read_block(DType dtype, const std::byte* bytes, WeightBlock& block) noexcept;

struct WeightFormat;
extern const WeightFormat kQ4_0Weights, kQ4_1Weights, kQ5_0Weights, kQ5_1Weights, kQ8_0Weights, kQ2_KWeights,
    kQ3_KWeights, kQ4_KWeights, kQ5_KWeights, kQ6_KWeights;

}  // namespace ops_transformer
