// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops_transformer/attention/attention_call.h"

namespace ops_transformer {

/// Keys and values are f32 | bf16 | f16, or s8 with scales. Throws InvalidArgument where scales and offsets don't fit
/// them.
void check_codes(const AttentionCall& call);

/// The scales of a validated call with s8 keys.
CodeValues codes_of(const AttentionCall& call, const std::optional<ConstTensorView>& scales,
                    const std::optional<ConstTensorView>& offsets);

}  // namespace ops_transformer
