// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/gemm/quantised_weights.h"

#include <cstring>

#include "ops_transformer/base/memory.h"
#include "ops_transformer/gemm/float_multiply_kernel.h"
#include "ops_transformer/gemm/quantise_rows_kernel.h"
#include "ops_transformer/gemm/quantised_linear_kernel.h"
#include "ops_transformer/gemm/weight_format.h"

namespace ops_transformer {
namespace {

template <DType kWeights>
std::size_t tile_bytes(std::int64_t num_inputs, const WeightScaling& = {}) {
  constexpr WeightForm kForm = weight_form(kWeights);
  return align_up(std::size_t(num_inputs / kForm.block_len) * std::size_t(kForm.block_bytes()));
}

// `bits` bits from `shift` on of the codes of eight groups, as a plane: WeightForm's layout.
void pack_plane(const std::uint32_t* codes, int bits, int shift, std::byte* plane) {
  const std::uint32_t mask = ((1u << bits) - 1) * 0x01010101u;
  for (int word = 0; word < bits; ++word) {
    std::uint32_t packed = 0;
    for (int group = word; group < 8; group += bits) packed |= (codes[group] >> shift & mask) << group / bits * bits;
    std::memcpy(plane + word * 64, &packed, sizeof packed);
  }
}

// Packs the GGUF rows of 16 outputs.
template <DType kWeights>
void pack_tile(const void* const* rows, std::int64_t num_inputs, std::byte* tile) {
  constexpr WeightForm kForm = weight_form(kWeights);
  const std::size_t file_block = dtype_info(kWeights).block_bytes;
  const std::int64_t num_blocks = num_inputs / kForm.block_len;
  std::memset(tile, 0, tile_bytes<kWeights>(num_inputs));
  for (std::int64_t b = 0; b < num_blocks; ++b, tile += kForm.block_bytes()) {
    for (int output = 0; output < kTileOutputs; ++output) {
      if (!rows[output]) continue;
      WeightBlock block{};
      read_block(kWeights, static_cast<const std::byte*>(rows[output]) + std::size_t(b) * file_block, block);
      for (int i = 0; i < kForm.block_len / kQuantBlockLen; ++i) {
        std::byte* const planes = tile + i * kForm.part_bytes() + output * 4;
        pack_plane(block.codes + 8 * i, kForm.low_bits, 0, planes);
        pack_plane(block.codes + 8 * i, kForm.high_bits, kForm.low_bits, planes + 64 * kForm.low_bits);
      }
      for (int sub = 0; kForm.sub_scale_bits && sub < kForm.num_subs(); ++sub) {
        const auto scale = std::uint8_t(block.sub_scales[sub]), minimum = std::uint8_t(block.sub_minima[sub]);
        tile[kForm.sub_scales_at(sub) + output] = std::byte(kForm.sub_scale_bits == 4 ? scale | minimum << 4 : scale);
        if (kForm.sub_scale_bits == 8 && kForm.has_minimum)
          tile[kForm.sub_minima_at(sub) + output] = std::byte(minimum);
      }
      std::memcpy(tile + kForm.scales_at() + output * 2, &block.scale, 2);
      if (kForm.has_minimum) std::memcpy(tile + kForm.scales_at() + 32 + output * 2, &block.minimum, 2);
    }
  }
}

std::size_t quantised_bytes(std::int64_t num_inputs, const WeightScaling&) {
  return off_page(quantised_row_bytes(num_inputs));
}
bool never(DType, std::int64_t, Isa) { return false; }

constexpr MatmulMethod fast(std::string_view name, const Kernel<MultiplyFn>* multiply) {
  return {name, quantised_bytes, never, &quantise_rows, multiply, false, 4};
}
constexpr MatmulMethod exact(std::string_view name, const Kernel<MultiplyFn>* multiply) {
  return {name, f32_row_bytes, reads_f32, &prepare_f32, multiply};
}

template <DType kWeights>
constexpr WeightFormat format(const MatmulMethod& fast_method, const MatmulMethod& exact_method) {
  return {kWeights, tile_bytes<kWeights>, pack_tile<kWeights>, fast_method, exact_method};
}

}  // namespace

constinit const WeightFormat kQ4_0Weights =
    format<DType::q4_0>(fast("q4_0 by int8", &multiply_q4_0), exact("q4_0 widened", &multiply_exact_q4_0));
constinit const WeightFormat kQ4_1Weights =
    format<DType::q4_1>(fast("q4_1 by int8", &multiply_q4_1), exact("q4_1 widened", &multiply_exact_q4_1));
constinit const WeightFormat kQ5_0Weights =
    format<DType::q5_0>(fast("q5_0 by int8", &multiply_q5_0), exact("q5_0 widened", &multiply_exact_q5_0));
constinit const WeightFormat kQ5_1Weights =
    format<DType::q5_1>(fast("q5_1 by int8", &multiply_q5_1), exact("q5_1 widened", &multiply_exact_q5_1));
constinit const WeightFormat kQ8_0Weights =
    format<DType::q8_0>(fast("q8_0 by int8", &multiply_q8_0), exact("q8_0 widened", &multiply_exact_q8_0));
constinit const WeightFormat kQ2_KWeights =
    format<DType::q2_k>(fast("q2_k by int8", &multiply_q2_k), exact("q2_k widened", &multiply_exact_q2_k));
constinit const WeightFormat kQ3_KWeights =
    format<DType::q3_k>(fast("q3_k by int8", &multiply_q3_k), exact("q3_k widened", &multiply_exact_q3_k));
constinit const WeightFormat kQ4_KWeights =
    format<DType::q4_k>(fast("q4_k by int8", &multiply_q4_k), exact("q4_k widened", &multiply_exact_q4_k));
constinit const WeightFormat kQ5_KWeights =
    format<DType::q5_k>(fast("q5_k by int8", &multiply_q5_k), exact("q5_k widened", &multiply_exact_q5_k));
constinit const WeightFormat kQ6_KWeights =
    format<DType::q6_k>(fast("q6_k by int8", &multiply_q6_k), exact("q6_k widened", &multiply_exact_q6_k));

}  // namespace ops_transformer
