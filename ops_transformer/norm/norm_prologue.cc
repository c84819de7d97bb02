// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/norm/norm_prologue.h"

#include <fmt/format.h>

#include "ops_transformer/base/validate.h"

namespace ops_transformer {

void check_row_norm(const char* op, const ConstTensorView& x, const RowNorm& norm, const TensorView& out) {
  if (norm.kind > NormKind::layer) invalid(op, fmt::format("norm.kind is {}, must be 0...1", int(norm.kind)));
  const bool layer = norm.kind == NormKind::layer;
  if (layer && norm.weight_offset != 0.0f) {
    invalid(op, fmt::format("norm.weight_offset is {}, must be 0 for a layer norm", norm.weight_offset));
  }
  if (!layer && norm.bias) invalid(op, "norm.bias is given, must not be for an RMS norm");
  if (!(norm.eps >= 0.0f && norm.eps <= 1.0f)) {
    invalid(op, fmt::format("norm.eps is {}, must be from 0 to 1", norm.eps));
  }
  const std::int64_t rows = x.size(0), hidden = x.size(1);
  const auto check_input = [&](const char* name, const ConstTensorView& view) {
    check_rows(op, name, view);
    check_no_overlap(op, "out", out, name, view);
    if (norm.residual_out) check_no_overlap(op, "norm.residual_out", *norm.residual_out, name, view);
  };
  check_shape(op, "norm.weight", norm.weight, {hidden});
  check_dtype(op, "norm.weight", norm.weight, {DType::f32, x.dtype()});
  check_input("norm.weight", norm.weight);
  if (norm.bias) {
    check_shape(op, "norm.bias", *norm.bias, {hidden});
    check_dtype(op, "norm.bias", *norm.bias, {norm.weight.dtype()});
    check_input("norm.bias", *norm.bias);
  }
  if (norm.residual) {
    check_shape(op, "norm.residual", *norm.residual, {rows, hidden});
    check_dtype(op, "norm.residual", *norm.residual, {x.dtype()});
    check_rows(op, "norm.residual", *norm.residual);
    check_no_overlap(op, "out", out, "norm.residual", *norm.residual);
  }
  if (norm.residual_out) {
    const TensorView& sum = *norm.residual_out;
    check_shape(op, "norm.residual_out", sum, {rows, hidden});
    check_dtype(op, "norm.residual_out", sum, {x.dtype()});
    check_rows(op, "norm.residual_out", sum);
    check_output(op, "norm.residual_out", sum);
    check_in_place_or_apart(op, "norm.residual_out", sum, "x", x);
    if (norm.residual) check_in_place_or_apart(op, "norm.residual_out", sum, "norm.residual", *norm.residual);
    check_no_overlap(op, "out", out, "norm.residual_out", sum);
  }
}

NormPrologue::NormPrologue(const Context& context, const ConstTensorView& x, const RowNorm& norm)
    : kernel_((norm.kind == NormKind::rms ? rms_norm_rows : layer_norm_rows).at(context.isa())),
      prologue_{&make_row, this} {
  args_.x = x.data();
  args_.x_stride = x.stride(0);
  args_.x_dtype = x.dtype();
  args_.hidden = x.size(1);
  args_.weight = norm.weight.data();
  args_.weight_dtype = norm.weight.dtype();
  args_.out_dtype = DType::f32;
  args_.eps = norm.eps;
  args_.weight_offset = norm.weight_offset;
  if (norm.bias) args_.bias = norm.bias->data();
  if (norm.residual) {
    args_.residual = norm.residual->data();
    args_.residual_stride = norm.residual->stride(0);
  }
  if (norm.residual_out) {
    args_.residual_out = norm.residual_out->data();
    args_.residual_out_stride = norm.residual_out->stride(0);
  }
  const std::int64_t elements = x.num_elements(), x_bytes = std::int64_t(element_bytes(x.dtype()));
  work_.bytes = elements * x_bytes * ((norm.residual ? 1 : 0) + (norm.residual_out ? 1 : 0)) +
                args_.hidden * std::int64_t(element_bytes(norm.weight.dtype())) * (norm.bias ? 2 : 1);
  work_.flops = elements * ((norm.kind == NormKind::rms ? 4 : 7) + (norm.bias ? 1 : 0) + (norm.residual ? 1 : 0));
}

void NormPrologue::make_row(const void* self, std::int64_t row, float* out) noexcept {
  const auto& norm = *static_cast<const NormPrologue*>(self);
  NormArgs args = norm.args_;
  args.out = out;  // whichever row it is: out_stride is 0
  norm.kernel_(args, row, row + 1, out);
}

}  // namespace ops_transformer
