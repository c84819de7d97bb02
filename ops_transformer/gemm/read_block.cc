// SPDX-License-Identifier: Apache-2.0
// The blocks of GGUF's quantised types, as ggml lays them out. Four codes are handled at a time, as bytes of a word.
#include <bit>
#include <cstring>

#include "ops_transformer/gemm/quantised_weights.h"

namespace ops_transformer {
namespace {

static_assert(std::endian::native == std::endian::little);

std::uint32_t word_at(const std::byte* p) noexcept {
  std::uint32_t word;
  std::memcpy(&word, p, sizeof word);
  return word;
}
Float16 half_at(const std::byte* p) noexcept {
  Float16 half;
  std::memcpy(&half, p, sizeof half);
  return half;
}
// K types subtract minima that are positive.
Float16 negated_half_at(const std::byte* p) noexcept {
  Float16 half = half_at(p);
  half.bits ^= 0x8000;
  return half;
}
// The field of `bits` bits from `shift` on of each byte, moved up to bit `to`.
constexpr std::uint32_t field(std::uint32_t word, int shift, int bits, int to = 0) noexcept {
  return (word >> shift & ((1u << bits) - 1) * 0x01010101u) << to;
}

// 32 codes of which byte j holds the low four bits of elements j and j + 16; bit j of `fifths` is element j's fifth.
void read_nibbles(const std::byte* bytes, std::uint32_t fifths, WeightBlock& block) noexcept {
  for (int z = 0; z < 4; ++z) {
    const std::uint32_t word = word_at(bytes + 4 * z);
    block.codes[z] = field(word, 0, 4);
    block.codes[z + 4] = field(word, 4, 4);
  }
  // The product spreads four bits over the lowest bits of four bytes.
  for (int z = 0; z < 8; ++z) block.codes[z] |= ((fifths >> 4 * z & 15) * 0x00204081u & 0x01010101u) << 4;
}

// 256 codes; 32 bytes hold the low four bits of two runs of 32. fifths: nullptr, or bit i of 32 bytes for run i.
void read_runs_of_nibbles(const std::byte* bytes, const std::byte* fifths, WeightBlock& block) noexcept {
  for (int run = 0; run < 8; ++run) {
    for (int z = 0; z < 8; ++z) {
      std::uint32_t& codes = block.codes[8 * run + z];
      codes = field(word_at(bytes + run / 2 * 32 + 4 * z), run % 2 * 4, 4);
      if (fifths) codes |= field(word_at(fifths + 4 * z), run, 1, 4);
    }
  }
}

// 256 codes; 32 bytes hold two bits of four runs of 32.
void read_runs_of_pairs(const std::byte* bytes, int to, std::uint32_t (&codes)[64]) noexcept {
  for (int run = 0; run < 8; ++run) {
    for (int z = 0; z < 8; ++z) codes[8 * run + z] |= field(word_at(bytes + run / 4 * 32 + 4 * z), run % 4 * 2, 2, to);
  }
}

// Eight scales and eight minima of six bits in 12 bytes (Q4_K, Q5_K).
void read_scales_and_minima(const std::byte* bytes, WeightBlock& block) noexcept {
  const std::uint32_t scales = word_at(bytes), minima = word_at(bytes + 4), both = word_at(bytes + 8);
  const std::uint32_t words[4] = {field(scales, 0, 6), field(both, 0, 4) | field(scales, 6, 2, 4), field(minima, 0, 6),
                                  field(both, 4, 4) | field(minima, 6, 2, 4)};
  std::memcpy(block.sub_scales, words, 8);
  std::memcpy(block.sub_minima, words + 2, 8);
}

void read_q2_k(const std::byte* bytes, WeightBlock& block) noexcept {
  std::memset(block.codes, 0, sizeof block.codes);
  read_runs_of_pairs(bytes + 16, 0, block.codes);
  for (int i = 0; i < 16; ++i) {
    block.sub_scales[i] = std::int8_t(std::uint8_t(bytes[i]) & 15);
    block.sub_minima[i] = std::int8_t(std::uint8_t(bytes[i]) >> 4);
  }
  block.scale = half_at(bytes + 80);
  block.minimum = negated_half_at(bytes + 82);
}

void read_q3_k(const std::byte* bytes, WeightBlock& block) noexcept {
  for (int run = 0; run < 8; ++run) {
    for (int z = 0; z < 8; ++z) block.codes[8 * run + z] = field(word_at(bytes + 4 * z), run, 1, 2);
  }
  read_runs_of_pairs(bytes + 32, 0, block.codes);
  const std::uint32_t high = word_at(bytes + 104);
  for (int i = 0; i < 4; ++i) {
    const std::uint32_t scales = field(word_at(bytes + 96 + i % 2 * 4), i / 2 * 4, 4) | field(high, 2 * i, 2, 4);
    for (int j = 0; j < 4; ++j) block.sub_scales[4 * i + j] = std::int8_t(int(scales >> 8 * j & 63) - 32);
  }
  block.scale = half_at(bytes + 108);
}

void read_q6_k(const std::byte* bytes, WeightBlock& block) noexcept {
  for (int run = 0; run < 8; ++run) {
    for (int z = 0; z < 8; ++z) {
      const std::uint32_t word = word_at(bytes + run / 4 * 64 + run % 2 * 32 + 4 * z);
      block.codes[8 * run + z] = field(word, run % 4 / 2 * 4, 4);
    }
  }
  read_runs_of_pairs(bytes + 128, 4, block.codes);
  std::memcpy(block.sub_scales, bytes + 192, 16);
  block.scale = half_at(bytes + 208);
}

}  // namespace

void read_block(DType dtype, const std::byte* bytes, WeightBlock& block) noexcept {
  if (dtype == DType::q2_k) return read_q2_k(bytes, block);
  if (dtype == DType::q3_k) return read_q3_k(bytes, block);
  if (dtype == DType::q6_k) return read_q6_k(bytes, block);
  block.scale = half_at(bytes);
  switch (dtype) {
    case DType::q4_0:
      return read_nibbles(bytes + 2, 0, block);
    case DType::q4_1:
      block.minimum = half_at(bytes + 2);
      return read_nibbles(bytes + 4, 0, block);
    case DType::q5_0:
      return read_nibbles(bytes + 6, word_at(bytes + 2), block);
    case DType::q5_1:
      block.minimum = half_at(bytes + 2);
      return read_nibbles(bytes + 8, word_at(bytes + 4), block);
    case DType::q4_k:
    case DType::q5_k:
      block.minimum = negated_half_at(bytes + 2);
      read_scales_and_minima(bytes + 4, block);
      return dtype == DType::q4_k ? read_runs_of_nibbles(bytes + 16, nullptr, block)
                                  : read_runs_of_nibbles(bytes + 48, bytes + 16, block);
    default:  // q8_0
      for (int z = 0; z < 8; ++z) block.codes[z] = word_at(bytes + 2 + 4 * z) ^ 0x80808080u;
  }
}

}  // namespace ops_transformer
