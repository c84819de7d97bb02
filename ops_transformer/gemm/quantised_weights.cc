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

constexpr std::size_t kWordBytes = 4;  // codes of four inputs (eight, where they are nibbles) of one output

template <DType kWeights>
std::size_t tile_bytes(std::int64_t num_inputs) {
  return align_up(std::size_t(num_inputs / kQuantBlockLen) * packed_block_bytes(kWeights));
}

// Packs the GGUF rows of 16 outputs.
template <DType kWeights>
void pack_tile(const void* const* rows, std::int64_t num_inputs, std::byte* tile) {
  const std::size_t file_block = dtype_info(kWeights).block_bytes;
  constexpr std::size_t kHalves = kWeights == DType::q4_1 ? 2 : 1;  // in front of the codes in a file's block
  constexpr std::size_t kGroupBytes = kTileOutputs * kWordBytes;
  constexpr std::size_t kGroups = packed_codes_bytes(kWeights) / kGroupBytes;
  const auto num_blocks = std::size_t(num_inputs / kQuantBlockLen);
  for (std::size_t b = 0; b < num_blocks; ++b, tile += packed_block_bytes(kWeights)) {
    for (std::size_t output = 0; output < kTileOutputs; ++output) {
      std::byte block[kHalves * 2 + kGroups * kWordBytes] = {};
      if (rows[output]) std::memcpy(block, static_cast<const std::byte*>(rows[output]) + b * file_block, sizeof block);
      for (std::size_t group = 0; group < kGroups; ++group) {
        std::uint32_t codes;
        std::memcpy(&codes, block + kHalves * 2 + group * kWordBytes, kWordBytes);
        if (kWeights == DType::q8_0) codes ^= 0x80808080u;  // s8 to s8 + 128
        std::memcpy(tile + group * kGroupBytes + output * kWordBytes, &codes, kWordBytes);
      }
      for (std::size_t half = 0; half < kHalves; ++half) {
        std::memcpy(tile + kGroups * kGroupBytes + (half * kTileOutputs + output) * 2, block + half * 2, 2);
      }
    }
  }
}

std::size_t quantised_bytes(std::int64_t num_inputs) { return off_page(quantised_row_bytes(num_inputs)); }
bool never(DType, std::int64_t, Isa) { return false; }

constexpr MatmulMethod fast(std::string_view name, const Kernel<MultiplyFn>* multiply) {
  return {name, quantised_bytes, never, &quantise_rows, multiply, false, 4};
}
constexpr MatmulMethod exact(std::string_view name, const Kernel<MultiplyFn>* multiply) {
  return {name, f32_row_bytes, reads_f32, &prepare_f32, multiply};
}

}  // namespace

constinit const WeightFormat kQ4_0Weights{DType::q4_0, tile_bytes<DType::q4_0>, pack_tile<DType::q4_0>,
                                          fast("q4_0 by int8", &multiply_q4_0),
                                          exact("q4_0 widened", &multiply_exact_q4_0)};
constinit const WeightFormat kQ4_1Weights{DType::q4_1, tile_bytes<DType::q4_1>, pack_tile<DType::q4_1>,
                                          fast("q4_1 by int8", &multiply_q4_1),
                                          exact("q4_1 widened", &multiply_exact_q4_1)};
constinit const WeightFormat kQ8_0Weights{DType::q8_0, tile_bytes<DType::q8_0>, pack_tile<DType::q8_0>,
                                          fast("q8_0 by int8", &multiply_q8_0),
                                          exact("q8_0 widened", &multiply_exact_q8_0)};

}  // namespace ops_transformer
