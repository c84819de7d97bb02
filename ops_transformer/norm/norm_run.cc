// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/norm/norm_run.h"

#include <fmt/format.h>

#include <cstdint>
#include <utility>

#include "ops_transformer/base/validate.h"
#include "ops_transformer/profiler/profiler.h"
#include "ops_transformer/tuning/device_spec.h"

namespace ops_transformer {
namespace {

// An output that the last-level cache can't keep for its reader is stored past it.
bool worth_streaming(const NormTensors& t) {
  const std::size_t element = element_bytes(t.out.dtype());
  const bool aligned =
      (reinterpret_cast<std::uintptr_t>(t.out.data()) | std::uintptr_t(t.out.stride(0)) * element) % 64 == 0;
  return aligned && !t.added && !t.scales && t.out.data() != t.x.data() &&
         std::size_t(t.out.num_elements()) * element > this_device().l3_bytes / 2;
}

// Every operand once.
Work work_of(const NormTensors& t, std::int64_t extra_flops) {
  const auto bytes = [](const ConstTensorView& view) {
    return view.num_elements() * std::int64_t(element_bytes(view.dtype()));
  };
  Work work{.bytes = bytes(t.x) + bytes(t.weight) + bytes(t.out),
            .flops = t.x.num_elements() * (4 + extra_flops + (t.residual ? 1 : 0) + (t.added ? 1 : 0))};
  for (const auto& one : {t.bias, t.residual, t.added}) work.bytes += one ? bytes(*one) : 0;
  for (const auto& one : {t.residual_out, t.scales}) work.bytes += one ? bytes(*one) : 0;
  return work;
}

void check_out(const char* op, const NormTensors& t) {
  const std::int64_t rows = t.x.size(0), hidden = t.x.size(1);
  check_shape(op, "out", t.out, {rows, hidden});
  if (t.scales) {
    check_dtype(op, "out", t.out, {DType::s8});
    check_shape(op, "scales", *t.scales, {rows});
    check_dtype(op, "scales", *t.scales, {DType::f32});
    check_output(op, "scales", *t.scales);
    for (const auto& [name, other] :
         {std::pair<const char*, ConstTensorView>{"x", t.x}, {"weight", t.weight}, {"out", t.out}}) {
      check_no_overlap(op, "scales", *t.scales, name, other);
    }
    if (t.added) invalid(op, "added is given, must not be where out is quantised");
  } else {
    check_dtype(op, "out", t.out, {DType::f32, t.x.dtype()});
  }
  check_rows(op, "out", t.out);
  check_output(op, "out", t.out);
  check_no_overlap(op, "out", t.out, "weight", t.weight);
  check_in_place_or_apart(op, "out", t.out, "x", t.x);
}

}  // namespace

void check_norm(const char* op, const NormTensors& t) {
  check_rank(op, "x", t.x, 2);
  check_dtype(op, "x", t.x, {DType::f32, DType::bf16, DType::f16});
  check_rows(op, "x", t.x);
  const std::int64_t rows = t.x.size(0), hidden = t.x.size(1);
  check_shape(op, "weight", t.weight, {hidden});
  check_dtype(op, "weight", t.weight, {DType::f32, t.x.dtype()});
  check_rows(op, "weight", t.weight);
  check_out(op, t);
  if (!(t.eps >= 0.0f && t.eps <= 1.0f)) invalid(op, fmt::format("eps is {}, must be from 0 to 1", t.eps));
  const TensorView* const outputs[] = {&t.out, t.residual_out ? &*t.residual_out : nullptr,
                                       t.scales ? &*t.scales : nullptr};
  constexpr const char* kOutputs[] = {"out", "residual_out", "scales"};
  const auto check_apart = [&](const char* name, const ConstTensorView& input) {
    for (int i = 0; i < 3; ++i) {
      if (outputs[i]) check_no_overlap(op, kOutputs[i], *outputs[i], name, input);
    }
  };
  if (t.bias) {
    check_shape(op, "bias", *t.bias, {hidden});
    check_dtype(op, "bias", *t.bias, {t.weight.dtype()});
    check_rows(op, "bias", *t.bias);
    check_apart("bias", *t.bias);
  }
  if (t.residual) {
    check_shape(op, "residual", *t.residual, {rows, hidden});
    check_dtype(op, "residual", *t.residual, {t.x.dtype()});
    check_rows(op, "residual", *t.residual);
    check_no_overlap(op, "out", t.out, "residual", *t.residual);
    if (t.scales) check_no_overlap(op, "scales", *t.scales, "residual", *t.residual);
  }
  if (t.residual_out) {
    check_shape(op, "residual_out", *t.residual_out, {rows, hidden});
    check_dtype(op, "residual_out", *t.residual_out, {t.x.dtype()});
    check_rows(op, "residual_out", *t.residual_out);
    check_output(op, "residual_out", *t.residual_out);
    check_in_place_or_apart(op, "residual_out", *t.residual_out, "x", t.x);
    if (t.residual) check_in_place_or_apart(op, "residual_out", *t.residual_out, "residual", *t.residual);
    check_no_overlap(op, "residual_out", *t.residual_out, "weight", t.weight);
    check_no_overlap(op, "out", t.out, "residual_out", *t.residual_out);
    if (t.scales) check_no_overlap(op, "scales", *t.scales, "residual_out", *t.residual_out);
  }
  if (t.added) {
    check_shape(op, "added", *t.added, {rows, hidden});
    check_dtype(op, "added", *t.added, {t.out.dtype()});
    check_rows(op, "added", *t.added);
    check_in_place_or_apart(op, "out", t.out, "added", *t.added);
    if (t.residual_out) check_no_overlap(op, "residual_out", *t.residual_out, "added", *t.added);
  }
}

void run_norm(Context& context, const char* op, const Kernel<NormFn>& kernel, const NormTensors& t,
              std::int64_t extra_flops) {
  const std::int64_t rows = t.x.size(0), hidden = t.x.size(1);
  if (rows == 0 || hidden == 0) return;
  NormArgs args{};
  args.x = t.x.data();
  args.weight = t.weight.data();
  args.out = t.out.data();
  args.hidden = hidden;
  args.x_stride = t.x.stride(0);
  args.out_stride = t.out.stride(0);
  args.x_dtype = t.x.dtype();
  args.weight_dtype = t.weight.dtype();
  args.out_dtype = t.out.dtype();
  args.eps = t.eps;
  args.weight_offset = t.weight_offset;
  args.stream = worth_streaming(t);
  if (t.bias) args.bias = t.bias->data();
  if (t.residual) {
    args.residual = t.residual->data();
    args.residual_stride = t.residual->stride(0);
  }
  if (t.residual_out) {
    args.residual_out = t.residual_out->data();
    args.residual_out_stride = t.residual_out->stride(0);
  }
  if (t.added) {
    args.added = t.added->data();
    args.added_stride = t.added->stride(0);
  }
  if (t.scales) {
    args.scales = t.scales->as<float>();
    args.scales_stride = t.scales->stride(0);
  }
  Zone zone(context, op, work_of(t, extra_flops));
  CallScope call(context);
  NormFn* const rows_of = kernel.at(context.isa());
  const std::size_t scratch_len = align_up(std::size_t(hidden), 16);
  const auto scratch = call.arena().allocate<float>(std::size_t(call.num_threads()) * scratch_len);
  call.parallel_rows(rows, hidden, [&](std::int64_t first, std::int64_t last, int worker) {
    rows_of(args, first, last, scratch.data() + std::size_t(worker) * scratch_len);
  });
}

}  // namespace ops_transformer
