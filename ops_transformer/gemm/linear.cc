// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/gemm/linear.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "ops_transformer/base/validate.h"
#include "ops_transformer/gemm/integer_weights.h"
#include "ops_transformer/gemm/linear_run.h"
#include "ops_transformer/gemm/widen_integers_kernel.h"

namespace ops_transformer {

namespace {

bool is_byte(DType dtype) { return dtype == DType::s8 || dtype == DType::u8; }

// x goes to the kernel as integers.
bool multiplies_integers(const PackedWeights& weights, const LinearOptions& options) {
  return is_integer_weight(weights.dtype()) && options.arithmetic == Arithmetic::fast;
}

void check_list(const char* op, const char* name, const std::optional<ConstTensorView>& list, std::int64_t size,
                DType dtype) {
  if (!list) return;
  check_shape(op, name, *list, {size});
  check_dtype(op, name, *list, {dtype});
  check_rows(op, name, *list);
}

void check_ids(const char* op, const char* name, const std::optional<ConstTensorView>& list, std::int64_t limit,
               bool may_drop) {
  if (!list) return;
  const auto* ids = list->as<std::int32_t>();
  for (std::int64_t i = 0; i < list->size(0); ++i) {
    if (ids[i] >= limit || (ids[i] < 0 && !may_drop))
      invalid(op,
              fmt::format("{}[{}] is {}, must be below {}{}", name, i, ids[i], limit, may_drop ? "" : " and from 0"));
  }
}

void check_integers(const char* op, const ConstTensorView& x, const PackedWeights& weights, const TensorView& out,
                    const LinearOptions& options) {
  const bool integers = multiplies_integers(weights, options), bytes = is_byte(x.dtype());
  if (bytes && !integers && is_block_quantised(weights.dtype()) && options.arithmetic == Arithmetic::fast)
    invalid(op, fmt::format("x is {}, which weights of {} take with exact arithmetic only", dtype_name(x.dtype()),
                            dtype_name(weights.dtype())));
  if (options.x_scales) {
    if (!bytes && !integers)
      invalid(op, fmt::format("x_scales is given, but x is {} and weights of {} don't round it", dtype_name(x.dtype()),
                              dtype_name(weights.dtype())));
    check_list(op, "x_scales", options.x_scales,
               options.x_scales->rank() == 1 && options.x_scales->size(0) == 1 ? 1 : x.size(0), DType::f32);
    check_no_overlap(op, "out", out, "x_scales", *options.x_scales);
  }
  const std::int32_t low = x.dtype() == DType::s8 ? -128 : 0;
  if (options.x_zero != 0 && (!bytes || options.x_zero < low || options.x_zero > low + 255))
    invalid(op, fmt::format("x_zero is {}, must be a code of x, which is {}", options.x_zero, dtype_name(x.dtype())));
  if (!integers) {
    if (out.dtype() == DType::i32) invalid(op, "out is i32, which takes integer weights and fast arithmetic");
    return;
  }
  const bool has_zero = options.x_zero != 0 || x.dtype() == DType::u8;
  if (has_zero && weights.scaling().group_len)
    invalid(op, fmt::format("x is {} with x_zero {}, but weights in groups take s8 with 0", dtype_name(x.dtype()),
                            options.x_zero));
  if (out.dtype() == DType::i32) {
    if (!bytes) invalid(op, fmt::format("out is i32, but x is {}, must be s8 or u8", dtype_name(x.dtype())));
    if (weights.scaling().group_len) invalid(op, "out is i32, but the weights are in groups");
    if (options.bias || options.residual || options.row_scales || options.out_rows || options.x_scales ||
        options.activation != Activation::none)
      invalid(op, "out is i32, which takes no bias, activation, residual, out_rows nor scales");
    return;
  }
  const std::int64_t most = has_zero ? kMostInputsWithZero : kMostInputsOfGroup;
  if (!weights.scaling().group_len && weights.num_inputs() > most)
    invalid(op, fmt::format("weights have {} inputs under one scale, must be at most {}", weights.num_inputs(), most));
}

template <class T>
const T* pointer(const std::optional<ConstTensorView>& view) {
  return view ? view->as<T>() : nullptr;
}

}  // namespace

void check_linear(const char* op, const ConstTensorView& x, const PackedWeights& weights, const TensorView& out,
                  const LinearOptions& options) {
  if (weights.num_gated_outputs() > 0) {
    invalid(op, fmt::format("weights were packed by pack_gate_up, for {} gated outputs: gated_linear reads them",
                            weights.num_gated_outputs()));
  }
  check_operands(op, x, weights, out, options.activation);
  check_dtype(op, "x", x, {DType::f32, DType::bf16, DType::f16, DType::s8, DType::u8});
  check_dtype(op, "out", out, {DType::f32, DType::bf16, DType::f16, DType::s8, DType::u8, DType::i32});
  check_list(op, "x_rows", options.x_rows, -1, DType::i32);
  const std::int64_t rows = options.x_rows ? options.x_rows->size(0) : x.size(0), outputs = weights.num_outputs();
  check_shape(op, "out", out, {options.out_rows ? -1 : rows, outputs});
  check_list(op, "bias", options.bias, outputs, DType::f32);
  check_list(op, "row_scales", options.row_scales, rows, DType::f32);
  check_list(op, "out_rows", options.out_rows, rows, DType::i32);
  for (const auto& [name, view] :
       {std::pair{"bias", &options.bias}, std::pair{"x_rows", &options.x_rows},
        std::pair{"row_scales", &options.row_scales}, std::pair{"out_rows", &options.out_rows}})
    if (*view) check_no_overlap(op, "out", out, name, **view);
  if (options.residual) {
    if (options.out_rows) invalid(op, "residual and out_rows are given, must be one of them");
    check_shape(op, "residual", *options.residual, {rows, outputs});
    check_dtype(op, "residual", *options.residual, {out.dtype()});
    check_rows(op, "residual", *options.residual);
    check_in_place_or_apart(op, "out", out, "residual", *options.residual);
  }
  if (is_byte(out.dtype())) {
    if (options.residual || options.out_rows)
      invalid(op, fmt::format("out is {}, which takes no {}", dtype_name(out.dtype()),
                              options.residual ? "residual" : "out_rows"));
    if (!(options.out_scale > 0.0f) || !std::isfinite(options.out_scale) || !std::isfinite(1.0f / options.out_scale))
      invalid(op, fmt::format("out_scale is {}, must be above 0 and finite", options.out_scale));
    const std::int32_t low = out.dtype() == DType::s8 ? -128 : 0;
    if (options.out_zero < low || options.out_zero > low + 255)
      invalid(op, fmt::format("out_zero is {}, must be from {} to {}", options.out_zero, low, low + 255));
  } else if (options.out_scale != 1.0f || options.out_zero != 0) {
    invalid(op, fmt::format("out_scale is {} and out_zero {}, but out is {}", options.out_scale, options.out_zero,
                            dtype_name(out.dtype())));
  }
  check_integers(op, x, weights, out, options);
  check_ids(op, "x_rows", options.x_rows, x.size(0), false);
  check_ids(op, "out_rows", options.out_rows, out.size(0), true);
}

void run_linear(Context& context, const char* op, const ConstTensorView& x, const PackedWeights& weights,
                const TensorView& out, const LinearOptions& options, const RowPrologue* prologue,
                const Work& prologue_work) {
  const std::int64_t rows = options.x_rows ? options.x_rows->size(0) : x.size(0);
  const std::int64_t outputs = weights.num_outputs(), inputs = weights.num_inputs();
  const auto out_bytes = rows * outputs * std::int64_t(element_bytes(out.dtype()));
  Zone zone(context, op,
            {.bytes = std::int64_t(weights.bytes()) + rows * inputs * std::int64_t(element_bytes(x.dtype())) +
                      out_bytes * (options.residual || options.out_rows ? 2 : 1) + prologue_work.bytes,
             .flops = 2 * rows * outputs * inputs + prologue_work.flops});
  CallScope call(context);
  const Isa isa = context.isa();
  const bool integers = multiplies_integers(weights, options), widens = is_byte(x.dtype()) && !integers;
  const MatmulPlan plan = plan_matmul(
      {weights.dtype(), x.dtype(), options.arithmetic, rows, inputs, (outputs + kTileOutputs - 1) / kTileOutputs,
       prologue || options.x_rows || widens, weights.scaling(), options.out_rows.has_value()},
      this_device(isa), call.num_threads());
  zone.plan([&] { return describe(plan); });
  RowSource source{.num_rows = rows, .gather = pointer<std::int32_t>(options.x_rows)};
  source.x_scales = pointer<float>(options.x_scales);
  source.x_scale_stride = options.x_scales && options.x_scales->size(0) != 1 ? 1 : 0;
  source.x_zero = options.x_zero - (x.dtype() == DType::u8 ? 128 : 0);
  source.raw = out.dtype() == DType::i32;
  const WidenIntegersArgs widen{x.data(),       source.x_scales, inputs, x.stride(0), source.x_scale_stride,
                                options.x_zero, x.dtype()};
  const RowPrologue dequantise{widen_integers.at(isa), &widen};
  if (widens) {
    prologue = &dequantise;
    source.x_scales = nullptr;
  }
  int saw_nan = 0;
  EpilogueArgs epilogue{};
  epilogue.bias = pointer<float>(options.bias);
  epilogue.row_scales = pointer<float>(options.row_scales);
  epilogue.out_rows = pointer<std::int32_t>(options.out_rows);
  epilogue.saw_nan = &saw_nan;
  epilogue.residual = options.residual ? options.residual->data() : nullptr;
  epilogue.residual_stride = options.residual ? options.residual->stride(0) : 0;
  epilogue.out = out.data();
  epilogue.out_stride = out.stride(0);
  epilogue.out_dtype = out.dtype();
  epilogue.inverse_out_scale = 1.0f / options.out_scale;
  epilogue.out_zero = options.out_zero;
  epilogue.num_outputs = outputs;
  epilogue.activation = options.activation;
  run_matmul(call, plan, x, weights, linear_epilogue.at(isa), epilogue, prologue, source);
  if (saw_nan) invalid(op, fmt::format("a result is NaN, which out of {} has no code for", dtype_name(out.dtype())));
}

void linear(Context& context, const ConstTensorView& x, const PackedWeights& weights, const TensorView& out,
            const LinearOptions& options) {
  constexpr const char* kOp = "linear";
  check_linear(kOp, x, weights, out, options);
  run_linear(context, kOp, x, weights, out, options);
}

}  // namespace ops_transformer
