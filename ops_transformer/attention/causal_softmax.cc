// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/attention/causal_softmax.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "ops_transformer/attention/causal_softmax_kernel.h"
#include "ops_transformer/base/validate.h"
#include "ops_transformer/profiler/profiler.h"

namespace ops_transformer {

void causal_softmax(Context& context, const TensorView& scores, float scale) {
  constexpr const char* kOp = "causal_softmax";
  check_rank(kOp, "scores", scores, 3);
  check_dtype(kOp, "scores", scores, {DType::f32});
  if (!scores.contiguous()) {
    invalid(kOp, fmt::format("scores must be contiguous, got {} with strides [{}]", describe(scores),
                             fmt::join(scores.strides(), ", ")));
  }
  if (!(scale > 0) || std::isinf(scale)) invalid(kOp, fmt::format("scale is {}, must be positive and finite", scale));
  const std::int64_t num_heads = scores.size(0), q_len = scores.size(1), kv_len = scores.size(2);
  const Zone zone(context, kOp, {.bytes = scores.num_elements() * 8, .flops = scores.num_elements() * 4});
  CallScope call(context);
  SoftmaxRowFn* kernel = softmax_row.at(context.isa());
  call.parallel_rows(num_heads * q_len, kv_len, [&](std::int64_t first, std::int64_t last, int) {
    for (std::int64_t row = first; row < last; ++row) {
      const std::int64_t visible = std::clamp(row % q_len + 1 + kv_len - q_len, std::int64_t{0}, kv_len);
      kernel(scores.as<float>() + row * kv_len, kv_len, visible, scale);
    }
  });
}

}  // namespace ops_transformer
