// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <span>

#include "ops_transformer/base/context.h"
#include "ops_transformer/base/error.h"
#include "ops_transformer/base/tensor_view.h"

namespace ops_transformer {

/// The result of attention over part of the keys, as flash_attention gives it.
struct AttentionPartial {
  ConstTensorView out;  // [rows, value_dim]  f32 | bf16 | f16, last dimension contiguous
  ConstTensorView lse;  // [rows]             f32, natural log
};

/// Attention over all keys from the results over disjoint parts of them: lse = log(sum(exp(lse_p))), out = sum(out_p
/// exp(lse_p - lse)). A part with lse -inf saw no key and its out is not read; where no part saw one, out is 0 and lse
/// -inf. Where one did, its out (in out's dtype) and lse keep their bits.
///
/// out  [rows, value_dim]  f32 | bf16 | f16; may be one of the parts' out itself, as may lse, overlaps nothing else
/// lse  [rows] f32
/// Throws InvalidArgument, which names the argument; past validation nothing fails.
OPS_TRANSFORMER_API void merge_attention(Context& context, std::span<const AttentionPartial> parts,
                                         const TensorView& out, const std::optional<TensorView>& lse = {});

}  // namespace ops_transformer
