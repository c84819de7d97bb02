// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/attention/alibi_attention.h"

#include <fmt/format.h>

#include <utility>

#include "ops_transformer/attention/attention_call.h"
#include "ops_transformer/attention/flash_attention.h"
#include "ops_transformer/base/validate.h"
#include "ops_transformer/posembedding/alibi.h"

namespace ops_transformer {

void alibi_attention(Context& context, const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
                     const TensorView& out, const AlibiAttentionOptions& options) {
  constexpr const char* kOp = "alibi_attention";
  check_rank(kOp, "q", q, 4);
  check_rank(kOp, "k", k, 4);
  if (options.max_seq_len) {
    if (*options.max_seq_len < 1) {
      invalid(kOp, fmt::format("max_seq_len is {}, must be at least 1", *options.max_seq_len));
    }
    for (const auto& [name, len] : {std::pair{"q_len", q.size(2)}, {"kv_len", k.size(2)}}) {
      if (len > *options.max_seq_len) {
        invalid(kOp, fmt::format("{} is {}, must be at most max_seq_len, {}", name, len, *options.max_seq_len));
      }
    }
  }
  check_at_most(kOp, "num_q_heads", q.size(1), kMaxAttentionHeads);
  CallScope call(context);
  const std::span<float> slopes = call.arena().allocate<float>(std::size_t(q.size(1)));
  alibi_slopes(slopes);
  flash_attention(context, q, k, v, out,
                  {.mask = options.causal ? Mask::causal : Mask::none,
                   .softmax_scale = options.softmax_scale,
                   .alibi_slopes = slopes,
                   .lse = options.lse});
}

}  // namespace ops_transformer
