// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/norm/rms_norm.h"

#include <fmt/format.h>

#include <cstdint>

#include "ops_transformer/base/validate.h"
#include "ops_transformer/norm/rms_norm_kernel.h"
#include "ops_transformer/profiler/profiler.h"
#include "ops_transformer/tuning/device_spec.h"

namespace ops_transformer {
namespace {

constexpr const char* kOp = "rms_norm";

void validate(const ConstTensorView& x, const ConstTensorView& weight, const TensorView& out,
              const RmsNormOptions& options) {
  check_rank(kOp, "x", x, 2);
  check_dtype(kOp, "x", x, {DType::f32, DType::bf16, DType::f16});
  check_rows(kOp, "x", x);
  check_shape(kOp, "weight", weight, {x.size(1)});
  check_dtype(kOp, "weight", weight, {DType::f32, x.dtype()});
  check_rows(kOp, "weight", weight);
  check_shape(kOp, "out", out, {x.size(0), x.size(1)});
  check_dtype(kOp, "out", out, {DType::f32, x.dtype()});
  check_rows(kOp, "out", out);
  check_output(kOp, "out", out);
  check_no_overlap(kOp, "out", out, "weight", weight);
  check_in_place_or_apart(kOp, "out", out, "x", x);
  if (!(options.eps >= 0.0f && options.eps <= 1.0f)) {
    invalid(kOp, fmt::format("eps is {}, must be from 0 to 1", options.eps));
  }
  if (options.residual) {
    check_shape(kOp, "residual", *options.residual, {x.size(0), x.size(1)});
    check_dtype(kOp, "residual", *options.residual, {x.dtype()});
    check_rows(kOp, "residual", *options.residual);
    check_no_overlap(kOp, "out", out, "residual", *options.residual);
  }
  if (options.residual_out) {
    check_shape(kOp, "residual_out", *options.residual_out, {x.size(0), x.size(1)});
    check_dtype(kOp, "residual_out", *options.residual_out, {x.dtype()});
    check_rows(kOp, "residual_out", *options.residual_out);
    check_output(kOp, "residual_out", *options.residual_out);
    check_in_place_or_apart(kOp, "residual_out", *options.residual_out, "x", x);
    if (options.residual) {
      check_in_place_or_apart(kOp, "residual_out", *options.residual_out, "residual", *options.residual);
    }
    check_no_overlap(kOp, "residual_out", *options.residual_out, "weight", weight);
    check_no_overlap(kOp, "out", out, "residual_out", *options.residual_out);
  }
  if (options.added) {
    check_shape(kOp, "added", *options.added, {x.size(0), x.size(1)});
    check_dtype(kOp, "added", *options.added, {out.dtype()});
    check_rows(kOp, "added", *options.added);
    check_in_place_or_apart(kOp, "out", out, "added", *options.added);
    if (options.residual_out) {
      check_no_overlap(kOp, "residual_out", *options.residual_out, "added", *options.added);
    }
  }
}

// An output that the last-level cache can't keep for its reader is stored past it.
bool worth_streaming(const ConstTensorView& x, const TensorView& out, const RmsNormOptions& options) {
  const std::size_t element = element_bytes(out.dtype());
  const bool aligned =
      (reinterpret_cast<std::uintptr_t>(out.data()) | std::uintptr_t(out.stride(0)) * element) % 64 == 0;
  return aligned && !options.added && out.data() != x.data() &&
         std::size_t(out.num_elements()) * element > this_device().l3_bytes / 2;
}

// Every operand once; for each element an addition, a square and its sum, two products.
Work work_of(const RmsNormArgs& args, std::int64_t rows) {
  const auto x_bytes = std::int64_t(element_bytes(args.x_dtype));
  const std::int64_t row_operands = 1 + (args.residual != nullptr) + (args.residual_out != nullptr);
  const std::int64_t elements = rows * args.hidden;
  const std::int64_t out_operands = 1 + (args.added != nullptr);
  return {.bytes = elements * (row_operands * x_bytes + out_operands * std::int64_t(element_bytes(args.out_dtype))) +
                   args.hidden * std::int64_t(element_bytes(args.weight_dtype)),
          .flops = elements * (4 + (args.residual != nullptr) + (args.added != nullptr))};
}

}  // namespace

void rms_norm(Context& context, const ConstTensorView& x, const ConstTensorView& weight, const TensorView& out,
              const RmsNormOptions& options) {
  validate(x, weight, out, options);
  const std::int64_t rows = x.size(0), hidden = x.size(1);
  if (rows == 0 || hidden == 0) return;
  RmsNormArgs args{};
  args.x = x.data();
  args.weight = weight.data();
  args.out = out.data();
  args.hidden = hidden;
  args.x_stride = x.stride(0);
  args.out_stride = out.stride(0);
  args.x_dtype = x.dtype();
  args.weight_dtype = weight.dtype();
  args.out_dtype = out.dtype();
  args.eps = options.eps;
  args.weight_offset = options.weight_offset;
  args.stream = worth_streaming(x, out, options);
  if (options.residual) {
    args.residual = options.residual->data();
    args.residual_stride = options.residual->stride(0);
  }
  if (options.residual_out) {
    args.residual_out = options.residual_out->data();
    args.residual_out_stride = options.residual_out->stride(0);
  }
  if (options.added) {
    args.added = options.added->data();
    args.added_stride = options.added->stride(0);
  }
  Zone zone(context, kOp, work_of(args, rows));
  CallScope call(context);
  RmsNormFn* kernel = rms_norm_rows.at(context.isa());
  const std::size_t scratch_len = align_up(std::size_t(hidden), 16);
  const auto scratch = call.arena().allocate<float>(std::size_t(call.num_threads()) * scratch_len);
  call.parallel_rows(rows, hidden, [&](std::int64_t first, std::int64_t last, int worker) {
    kernel(args, first, last, scratch.data() + std::size_t(worker) * scratch_len);
  });
}

}  // namespace ops_transformer
