// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/gemm/integer_weights.h"

#include <algorithm>
#include <cstring>

#include "ops_transformer/gemm/float_multiply_kernel.h"
#include "ops_transformer/gemm/integer_kernel.h"

namespace ops_transformer {
namespace {

std::uint8_t code_at(DType dtype, const std::uint8_t* row, std::int64_t stride, std::int64_t i) noexcept {
  if (dtype != DType::s4) return std::uint8_t(row[i * stride] ^ (dtype == DType::s8 ? 0x80 : 0));
  return std::uint8_t((row[i / 2] >> i % 2 * 4 & 15) ^ 8);
}

template <DType kCodes>
std::size_t tile_bytes(std::int64_t num_inputs, const WeightScaling& scaling) {
  return std::size_t(integer_layout(kCodes, num_inputs, scaling).tile_bytes);
}
template <DType kCodes>
void pack_tile(const void* const* rows, std::int64_t num_inputs, std::byte* tile) {
  pack_integer_tile(kCodes, rows, 1, num_inputs, {}, tile);
}

std::size_t integer_row_bytes(std::int64_t num_inputs, const WeightScaling& scaling) {
  const std::int64_t groups = scaling.group_len ? num_inputs / scaling.group_len : 1;
  return off_page(align_up(std::size_t(integer_codes_bytes(num_inputs) + groups * std::int64_t(sizeof(IntegerGroup)))));
}
bool never(DType, std::int64_t, Isa) { return false; }

constexpr MatmulMethod fast(std::string_view name, const Kernel<MultiplyFn>* multiply) {
  return {name, integer_row_bytes, never, &quantise_groups, multiply, true};
}
constexpr MatmulMethod exact(std::string_view name, const Kernel<MultiplyFn>* multiply) {
  return {name, f32_row_bytes, reads_f32, &prepare_f32, multiply};
}

}  // namespace

IntegerLayout integer_layout(DType dtype, std::int64_t num_inputs, const WeightScaling& scaling) noexcept {
  IntegerLayout layout{};
  layout.code_bits = dtype == DType::s4 ? 4 : 8;
  layout.group_len = scaling.group_len ? scaling.group_len : num_inputs;
  layout.num_groups = scaling.group_len ? num_inputs / scaling.group_len : 1;
  const std::int64_t inputs_per_word = 32 / layout.code_bits;
  layout.codes_bytes = (layout.group_len + inputs_per_word - 1) / inputs_per_word * 64;
  layout.group_bytes = layout.codes_bytes + std::int64_t(element_bytes(scaling.scales)) * kTileOutputs +
                       (scaling.has_zeros ? kTileOutputs : 0);
  const std::int64_t sums = scaling.group_len ? 0 : std::int64_t(sizeof(std::int32_t)) * kTileOutputs;
  layout.tile_bytes = std::int64_t(align_up(std::size_t(layout.num_groups * layout.group_bytes + sums)));
  return layout;
}

void pack_integer_tile(DType dtype, const void* const* rows, std::int64_t stride, std::int64_t num_inputs,
                       const WeightScaling& scaling, std::byte* tile) noexcept {
  const IntegerLayout layout = integer_layout(dtype, num_inputs, scaling);
  std::memset(tile, 0, std::size_t(layout.tile_bytes));
  for (int output = 0; output < kTileOutputs; ++output) {
    const auto* row = static_cast<const std::uint8_t*>(rows[output]);
    if (!row) continue;
    std::int32_t sum = 0;
    for (std::int64_t group = 0; group < layout.num_groups; ++group) {
      std::byte* const codes = tile + group * layout.group_bytes + 4 * output;
      const std::int64_t first = group * layout.group_len;
      std::int64_t i = 0;
      if (layout.code_bits == 8 && stride == 1) {
        const std::uint32_t flip = dtype == DType::s8 ? 0x80808080u : 0;
        for (; i + 4 <= layout.group_len; i += 4) {
          std::uint32_t word;
          std::memcpy(&word, row + first + i, sizeof word);
          word ^= flip;
          std::memcpy(codes + i * 16, &word, sizeof word);
          const std::uint32_t pairs = (word & 0x00ff00ffu) + (word >> 8 & 0x00ff00ffu);
          sum += std::int32_t((pairs & 0xffffu) + (pairs >> 16));
        }
      }
      for (; i < layout.group_len; ++i) {
        const std::uint8_t code = code_at(dtype, row, stride, first + i);
        sum += code;
        if (layout.code_bits == 8) {
          codes[i / 4 * 64 + i % 4] = std::byte(code);
        } else {
          codes[i / 8 * 64 + i % 4] |= std::byte(code << (i / 4 % 2 * 4));
        }
      }
    }
    if (!scaling.group_len) std::memcpy(tile + layout.group_bytes + 4 * output, &sum, sizeof sum);
  }
  if (scaling.scales != DType::f32) return;
  const float one = 1.0f;
  for (std::int64_t group = 0; group < layout.num_groups; ++group) {
    std::byte* const scales = tile + group * layout.group_bytes + layout.codes_bytes;
    for (int output = 0; output < kTileOutputs; ++output) std::memcpy(scales + 4 * output, &one, sizeof one);
  }
}

constinit const WeightFormat kS8Weights{DType::s8, tile_bytes<DType::s8>, pack_tile<DType::s8>,
                                        fast("s8 by int8", &multiply_bytes),
                                        exact("s8 widened", &multiply_exact_bytes)};
constinit const WeightFormat kU8Weights{DType::u8, tile_bytes<DType::u8>, pack_tile<DType::u8>,
                                        fast("u8 by int8", &multiply_bytes),
                                        exact("u8 widened", &multiply_exact_bytes)};
constinit const WeightFormat kS4Weights{DType::s4, tile_bytes<DType::s4>, pack_tile<DType::s4>,
                                        fast("s4 by int8", &multiply_nibbles),
                                        exact("s4 widened", &multiply_exact_nibbles)};

}  // namespace ops_transformer
