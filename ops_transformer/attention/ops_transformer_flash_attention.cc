// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/attention/ops_transformer_flash_attention.h"

#include <fmt/format.h>

#include <utility>

#include "ops_transformer/attention/flash_attention.h"
#include "ops_transformer/base/guard.h"
#include "ops_transformer/base/validate.h"

using namespace ops_transformer;

static_assert(OPS_TRANSFORMER_OK == kStatusOk && OPS_TRANSFORMER_INVALID_ARGUMENT == kStatusInvalidArgument &&
              OPS_TRANSFORMER_OUT_OF_MEMORY == kStatusOutOfMemory && OPS_TRANSFORMER_FAILED == kStatusFailed);

const char* ops_transformer_last_error(void) { return last_c_error().c_str(); }

ops_transformer_status flash_attention_blocked(const float* Q, const float* K, const float* V, float* O, int N, int D,
                                               int block_size) {
  return ops_transformer_status(guard([&] {
    constexpr const char* kOp = "flash_attention_blocked";
    for (const auto& [name, value] : {std::pair{"N", N}, {"block_size", block_size}}) {
      if (value < 0) invalid(kOp, fmt::format("{} is {}, must be >= 0", name, value));
    }
    if (D < 1) invalid(kOp, fmt::format("D is {}, must be at least 1", D));
    if (N == 0) return;
    for (const auto& [name, pointer] : {std::pair{"Q", Q}, {"K", K}, {"V", V}, {"O", static_cast<const float*>(O)}}) {
      if (!pointer) invalid(kOp, fmt::format("{} is null", name));
    }
    const auto head = [&](const float* data) { return ConstTensorView(data, DType::f32, {1, 1, N, D}); };
    flash_attention(Context::process_default(), head(Q), head(K), head(V), TensorView(O, DType::f32, {1, 1, N, D}),
                    {.block_size = block_size});
  }));
}
