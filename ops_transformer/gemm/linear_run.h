// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops_transformer/gemm/linear.h"
#include "ops_transformer/gemm/matmul.h"
#include "ops_transformer/profiler/profiler.h"

// The halves of linear, for operators that put a prologue before it.
namespace ops_transformer {

/// Throws InvalidArgument, which names the argument.
void check_linear(const char* op, const ConstTensorView& x, const PackedWeights& weights, const TensorView& out,
                  const LinearOptions& options);

/// Operands have been checked. prologue_work: what the prologue reads, writes and computes beyond x.
void run_linear(Context& context, const char* op, const ConstTensorView& x, const PackedWeights& weights,
                const TensorView& out, const LinearOptions& options, const RowPrologue* prologue = nullptr,
                const Work& prologue_work = {});

}  // namespace ops_transformer
