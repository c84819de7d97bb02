// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ops_transformer/base/context.h"
#include "ops_transformer/gemm/linear.h"
#include "ops_transformer/gemm/weight_format.h"
#include "ops_transformer/tuning/device_spec.h"

// Plan and run of every operator that multiplies by packed weights; such an operator validates, and gives its epilogue.
namespace ops_transformer {

struct MatmulProblem {
  DType weights = DType::f32, x = DType::f32;
  Arithmetic arithmetic = Arithmetic::fast;
  std::int64_t num_rows = 0, num_inputs = 0, num_tiles = 0;
  bool has_prologue = false;  // rows of x are made while they are read, as f32
  WeightScaling scaling{};
  bool rows_in_order = false;  // no two threads finish rows of the same outputs: they may be added to one place
};

/// Products and additions that a core does a cycle, in the type that the arithmetic multiplies in.
double flops_per_cycle(const MatmulProblem& problem, const DeviceSpec& device);

struct MatmulPlan {
  const MatmulMethod* method = nullptr;
  WeightScaling scaling{};
  bool prepares = false;  // x is first brought into the method's form
  bool rows_in_order = false;
  bool prepares_in_items = false;  // by each item for its own rows, which no other item then needs
  std::int64_t prepared_row_bytes = 0;
  std::int64_t inputs_per_block = 0;  // weights this deep stay in the cache while the rows of an item pass; 0: all
  std::int64_t tiles_per_block = 0;   // the weights' tiles that they pass together
  std::int64_t rows_per_item = 0, tiles_per_item = 0;
  std::int64_t num_row_items = 0, num_tile_items = 0;
};

/// A pure function; the weights' dtype must have a format.
OPS_TRANSFORMER_API MatmulPlan plan_matmul(const MatmulProblem& problem, const DeviceSpec& device, int num_threads);

OPS_TRANSFORMER_API std::string describe(const MatmulPlan& plan);

/// Why the plan is what it is, a sentence for each choice. For a problem with rows and tiles.
OPS_TRANSFORMER_API std::vector<std::string> explain(const MatmulProblem& problem, const MatmulPlan& plan,
                                                     const DeviceSpec& device, int num_threads);

/// What another family does to a row of x before it is multiplied (a norm): row r as num_inputs floats. Called once for
/// each row, on any thread.
struct RowPrologue {
  void (*make_row)(const void* args, std::int64_t row, float* out) noexcept;
  const void* args;
};

/// Which rows of x, and what their codes are.
struct RowSource {
  std::int64_t num_rows = -1;            // -1: those of x
  const std::int32_t* gather = nullptr;  // row r is row gather[r] of x
  const float* x_scales = nullptr;       // see LinearOptions
  std::int64_t x_scale_stride = 0;       // between rows of x
  std::int32_t x_zero = 0;
  bool raw = false;  // the epilogue gets integers
};

/// x [rows, num_inputs] by weights; `epilogue` receives the finished sums. With a prologue (and a plan that knows of
/// it) only the number of x's rows is read here. Doesn't throw but for lack of memory.
void run_matmul(CallScope& call, const MatmulPlan& plan, const ConstTensorView& x, const PackedWeights& weights,
                EpilogueFn* epilogue, const EpilogueArgs& epilogue_args, const RowPrologue* prologue = nullptr,
                const RowSource& source = {});

/// What validation of such operators shares: shapes but for the rows and columns of out, places, the activation.
void check_operands(const char* operation, const ConstTensorView& x, const PackedWeights& weights,
                    const TensorView& out, Activation activation);
/// For operators on rows of floats: x fits the weights, the activation is one, and out has this many columns
/// and overlaps neither x nor the weights.
void check_matmul(const char* operation, const ConstTensorView& x, const PackedWeights& weights, const TensorView& out,
                  std::int64_t num_columns, Activation activation);

}  // namespace ops_transformer
