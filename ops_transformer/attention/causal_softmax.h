// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops_transformer/base/context.h"
#include "ops_transformer/base/error.h"
#include "ops_transformer/base/tensor_view.h"

namespace ops_transformer {

/// In place: p = softmax(scale * s) over the keys that a causal mask shows (query i of q_len sees keys
/// j <= i + kv_len - q_len), 0 elsewhere; a row that sees nothing becomes 0. The middle pass of unfused attention: what
/// flash_attention is compared with. Flash attention itself never stores scores.
///
/// scores [num_heads, q_len, kv_len]  f32, contiguous
/// Throws InvalidArgument, which names the argument; past validation nothing fails.
OPS_TRANSFORMER_API void causal_softmax(Context& context, const TensorView& scores, float scale);

}  // namespace ops_transformer
