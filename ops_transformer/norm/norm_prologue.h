// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops_transformer/gemm/matmul.h"
#include "ops_transformer/norm/norm_kernel.h"
#include "ops_transformer/norm/norm_linear.h"
#include "ops_transformer/profiler/profiler.h"

namespace ops_transformer {

/// Throws InvalidArgument, which names the argument; x has been checked to be rows, out is the operator's.
void check_row_norm(const char* op, const ConstTensorView& x, const RowNorm& norm, const TensorView& out);

/// A checked norm as what makes the rows of a matmul.
class NormPrologue {
 public:
  NormPrologue(const Context& context, const ConstTensorView& x, const RowNorm& norm);
  NormPrologue(const NormPrologue&) = delete;
  NormPrologue& operator=(const NormPrologue&) = delete;

  const RowPrologue& prologue() const { return prologue_; }
  /// Beyond reading x.
  const Work& work() const { return work_; }

 private:
  static void make_row(const void* self, std::int64_t row, float* out) noexcept;

  NormArgs args_{};
  NormFn* kernel_;
  RowPrologue prologue_;
  Work work_;
};

}  // namespace ops_transformer
