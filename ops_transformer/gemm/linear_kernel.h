// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops_transformer/base/dtype.h"
#include "ops_transformer/base/isa.h"
#include "ops_transformer/gemm/activation.h"

namespace ops_transformer {

inline constexpr int kTileOutputs = 16;   // outputs in a tile of packed weights
inline constexpr int kTilesPerPanel = 4;  // tiles whose sums a kernel finishes together, at most

/// What happens to finished sums: y = row_scale * activation(sum + bias) + residual, rounded to out's dtype, or for s8
/// and u8 to the code nearest y / out_scale + out_zero; i32 takes integer sums as they are. An epilogue of another
/// family (gate times up) reads the same data in its own way.
struct EpilogueArgs {
  const float* bias;             // nullptr: none
  const float* row_scales;       // nullptr: none
  const std::int32_t* out_rows;  // nullptr: none; else row r is added to row out_rows[r] of out, or dropped below 0
  int* saw_nan;                  // set where a NaN had to become a code
  const void* residual;          // nullptr: none; dtype of out
  void* out;
  std::int64_t residual_stride, out_stride;  // elements between rows
  std::int64_t num_outputs;                  // columns of out: those past it in the last tile are dropped
  float inverse_out_scale;
  std::int32_t out_zero;
  DType out_dtype;
  Activation activation;
};

/// Sums that are complete and still in L1: rows [first_row, +num_rows) by tiles of packed weights [first_tile,
/// +num_tiles), row_stride floats apart.
struct FinishedSums {
  const float* sums;
  std::int64_t row_stride;
  std::int64_t first_row, first_tile;
  int num_rows, num_tiles;
};
using EpilogueFn = void(const EpilogueArgs& args, const FinishedSums& sums) noexcept;
OPS_TRANSFORMER_KERNEL(linear_epilogue, EpilogueFn, generic, avx2, avx512, avx512_bf16)

/// Brings rows of x into the form that a multiply kernel reads.
struct PrepareArgs {
  const void* x;
  std::byte* prepared;
  std::int64_t num_inputs;
  std::int64_t x_stride;            // elements
  std::int64_t prepared_row_bytes;  // a multiple of 64
  DType x_dtype;
  // For integers in groups, see integer_kernel.h.
  std::int64_t group_len, groups_at;
  const float* x_scales;  // of the row x starts with; nullptr: found from the row
  std::int64_t x_scale_stride;
};
using PrepareFn = void(const PrepareArgs& args, std::int64_t first_row, std::int64_t last_row) noexcept;

struct IntegerArgs;
struct MultiplyArgs {
  const std::byte* x;        // prepared rows, or x itself where the kernel reads it as it lies
  std::int64_t x_first_row;  // the row that x starts with
  const std::byte* weights;  // tile t at t * tile_bytes
  std::int64_t x_row_bytes, tile_bytes;
  std::int64_t num_inputs;
  std::int64_t inputs_per_block;  // a block of weights this deep stays in the cache while the rows pass; even; 0: all
  EpilogueFn* epilogue;           // called once for every finished block of sums
  const EpilogueArgs* epilogue_args;
  const IntegerArgs* integers;  // of weights s8, u8, s4; else nullptr
};

/// One item of work. first_tile is even, and last_tile too where an epilogue wants pairs of tiles; an epilogue is given
/// an even first tile and, for an even number of tiles here, an even number.
struct MultiplyRange {
  std::int64_t first_row, last_row, first_tile, last_tile;
};
/// sums: scratch, 64-byte aligned, [last_row - first_row][kTilesPerPanel * kTileOutputs] f32.
using MultiplyFn = void(const MultiplyArgs& args, const MultiplyRange& range, float* sums) noexcept;

}  // namespace ops_transformer
