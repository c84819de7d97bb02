// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "ops_transformer/base/tensor_view.h"
#include "ops_transformer/posembedding/rope_kernel.h"

// What operators that rotate rows [tokens, heads, head_dim] share. Checks throw InvalidArgument.
namespace ops_transformer {

/// positions [tokens of x] i32 | i64; rotary_dim is at most head_dim.
void check_rotation(const char* op, const ConstTensorView& x, const ConstTensorView& positions,
                    std::int64_t rotary_dim);

/// Every position is from `least` to `most`.
void check_positions(const char* op, const ConstTensorView& positions, std::int64_t least, std::int64_t most);

RopeArgs rope_args(const ConstTensorView& x, const ConstTensorView& positions, const TensorView& out,
                   const RopeAngles& angles);

}  // namespace ops_transformer
