// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/posembedding/rotary_mul.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "ops_transformer/base/validate.h"
#include "ops_transformer/posembedding/rotary_mul_kernel.h"
#include "ops_transformer/profiler/profiler.h"

namespace ops_transformer {
namespace {

constexpr const char* kOp = "rotary_mul";

void validate(const ConstTensorView& x, const ConstTensorView& cos, const ConstTensorView& sin, RotaryMode mode,
              const TensorView& out, const std::optional<ConstTensorView>& rotated) {
  if (mode > RotaryMode::interleave_half) invalid(kOp, fmt::format("mode is {}, must be 0...3", int(mode)));
  check_rank(kOp, "x", x, 4);
  check_dtype(kOp, "x", x, {DType::f32, DType::bf16, DType::f16});
  check_rows(kOp, "x", x);
  check_rank(kOp, "cos", cos, 4);
  const std::int64_t dim = cos.size(3), multiple = mode == RotaryMode::quarter ? 4 : 2;
  if (dim > x.size(3) || dim % multiple != 0) {
    invalid(kOp, fmt::format("cos has rows of {}, must be a multiple of {} and at most head_dim = {}", dim, multiple,
                             x.size(3)));
  }
  for (const auto& [name, factors] : {std::pair{"cos", &cos}, {"sin", &sin}}) {
    check_rank(kOp, name, *factors, 4);
    const auto size = [&](int i) { return factors->size(i) == 1 ? 1 : x.size(i); };
    check_shape(kOp, name, *factors, {size(0), size(1), size(2), dim});
    check_dtype(kOp, name, *factors, {DType::f32, x.dtype()});
    check_rows(kOp, name, *factors);
    check_no_overlap(kOp, "out", out, name, *factors);
  }
  check_dtype(kOp, "sin", sin, {cos.dtype()});
  check_shape(kOp, "out", out, {x.size(0), x.size(1), x.size(2), x.size(3)});
  check_dtype(kOp, "out", out, {x.dtype()});
  check_rows(kOp, "out", out);
  check_output(kOp, "out", out);
  check_in_place_or_apart(kOp, "out", out, "x", x);
  if (!rotated) return;
  if (mode == RotaryMode::interleave_half) invalid(kOp, "rotated is given, must not be with interleave_half");
  check_shape(kOp, "rotated", *rotated, {x.size(0), x.size(1), x.size(2), dim});
  check_dtype(kOp, "rotated", *rotated, {x.dtype()});
  check_rows(kOp, "rotated", *rotated);
  check_no_overlap(kOp, "out", out, "rotated", *rotated);
}

}  // namespace

void rotary_mul(Context& context, const ConstTensorView& x, const ConstTensorView& cos, const ConstTensorView& sin,
                RotaryMode mode, const TensorView& out, const std::optional<ConstTensorView>& rotated) {
  validate(x, cos, sin, mode, out, rotated);
  if (x.num_elements() == 0) return;
  RotaryMulArgs args{};
  args.x = x.data();
  args.cos = cos.data();
  args.sin = sin.data();
  args.rotated = rotated ? rotated->data() : nullptr;
  args.out = out.data();
  for (int i = 0; i < 3; ++i) {
    args.size[i] = x.size(i);
    args.x_stride[i] = x.stride(i);
    args.out_stride[i] = out.stride(i);
    args.cos_stride[i] = cos.size(i) == 1 ? 0 : cos.stride(i);
    args.sin_stride[i] = sin.size(i) == 1 ? 0 : sin.stride(i);
    args.rotated_stride[i] = rotated ? rotated->stride(i) : 0;
  }
  args.head_dim = x.size(3);
  args.rotary_dim = cos.size(3);
  args.dtype = x.dtype();
  args.angle_dtype = cos.dtype();
  args.mode = mode;
  const std::int64_t rows = x.size(0) * x.size(1) * x.size(2);
  Zone zone(context, kOp,
            {.bytes = (2 * x.num_elements() + (rotated ? rotated->num_elements() : 0)) *
                          std::int64_t(element_bytes(x.dtype())) +
                      (cos.num_elements() + sin.num_elements()) * std::int64_t(element_bytes(cos.dtype())),
             .flops = 3 * rows * args.rotary_dim});
  CallScope call(context);
  RotaryMulFn* const kernel = rotary_mul_rows.at(context.isa());
  const std::size_t scratch_len = 5 * align_up(std::size_t(args.head_dim), 16);
  const auto scratch = call.arena().allocate<float>(std::size_t(call.num_threads()) * scratch_len);
  call.parallel_rows(rows, args.head_dim, [&](std::int64_t first, std::int64_t last, int worker) {
    kernel(args, first, last, scratch.data() + std::size_t(worker) * scratch_len);
  });
}

}  // namespace ops_transformer
