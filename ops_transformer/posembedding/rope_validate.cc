// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/posembedding/rope_validate.h"

#include <fmt/format.h>

#include "ops_transformer/base/validate.h"

namespace ops_transformer {

void check_rotation(const char* op, const ConstTensorView& x, const ConstTensorView& positions,
                    std::int64_t rotary_dim) {
  if (x.size(2) < rotary_dim) {
    invalid(op, fmt::format("rotary_dim is {}, must be at most head_dim = {}", rotary_dim, x.size(2)));
  }
  check_shape(op, "positions", positions, {x.size(0)});
  check_dtype(op, "positions", positions, {DType::i32, DType::i64});
}

void check_positions(const char* op, const ConstTensorView& positions, std::int64_t least, std::int64_t most) {
  if (positions.dtype() == DType::i32 && least <= INT32_MIN && most >= INT32_MAX) return;
  for (std::int64_t token = 0; token < positions.size(0); ++token) {
    const std::int64_t position = position_at(positions.data(), positions.dtype(), token * positions.stride(0));
    if (position < least || position > most) {
      invalid(op, fmt::format("positions[{}] is {}, must be from {} to {}", token, position, least, most));
    }
  }
}

RopeArgs rope_args(const ConstTensorView& x, const ConstTensorView& positions, const TensorView& out,
                   const RopeAngles& angles) {
  return {.x = x.data(),
          .out = out.data(),
          .positions = positions.data(),
          .num_heads = x.size(1),
          .head_dim = x.size(2),
          .x_token_stride = x.stride(0),
          .x_head_stride = x.stride(1),
          .out_token_stride = out.stride(0),
          .out_head_stride = out.stride(1),
          .position_stride = positions.stride(0),
          .angles = angles,
          .dtype = x.dtype(),
          .position_dtype = positions.dtype()};
}

}  // namespace ops_transformer
