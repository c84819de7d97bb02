// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "ops_transformer/base/dtype.h"
#include "ops_transformer/base/isa.h"
#include "ops_transformer/base/memory.h"
#include "ops_transformer/gemm/linear.h"
#include "ops_transformer/gemm/linear_kernel.h"

namespace ops_transformer {

/// One way to multiply by weights of one dtype. What `prepare` writes at a level is what `multiply` reads there: both
/// have the same levels, or the form is the same at every level.
struct MatmulMethod {
  std::string_view name;  // shown in plans
  std::size_t (*prepared_row_bytes)(std::int64_t num_inputs, const WeightScaling& scaling);
  bool (*reads_as_it_lies)(DType x, std::int64_t num_inputs, Isa isa);  // x needs no preparation
  const Kernel<PrepareFn>* prepare;
  const Kernel<MultiplyFn>* multiply;
  bool blocks_inputs = false;     // heeds MultiplyArgs::inputs_per_block
  std::int64_t row_granule = 12;  // a multiple of the rows of every level's tile
};

/// A stride of a multiple of 4 KiB would put all rows of a tile into one set of L1.
constexpr std::size_t off_page(std::size_t bytes) { return bytes % 4096 == 0 ? bytes + kAlignment : bytes; }

// What methods that multiply rows of f32 share: prepared_row_bytes and reads_as_it_lies.
inline std::size_t f32_row_bytes(std::int64_t num_inputs, const WeightScaling&) {
  return off_page(align_up(std::size_t(num_inputs) * sizeof(float)));
}
inline bool reads_f32(DType x, std::int64_t, Isa) { return x == DType::f32; }

/// Writes one tile: rows[0…15] are the outputs' rows of weights, nullptr for outputs past the end, which are packed as
/// zeros.
using PackTileFn = void(const void* const* rows, std::int64_t num_inputs, std::byte* tile);

/// What packing and linear know about a dtype of weights. weight_formats.cc holds the list: a new dtype is a row there.
struct WeightFormat {
  DType dtype;
  std::size_t (*tile_bytes)(std::int64_t num_inputs, const WeightScaling& scaling);  // a multiple of 64
  PackTileFn* pack_tile;
  MatmulMethod fast, exact;

  const MatmulMethod& method(Arithmetic arithmetic) const { return arithmetic == Arithmetic::fast ? fast : exact; }
};

std::span<const WeightFormat* const> weight_formats() noexcept;
/// nullptr where no format has this dtype.
OPS_TRANSFORMER_API const WeightFormat* find_weight_format(DType dtype) noexcept;

}  // namespace ops_transformer
