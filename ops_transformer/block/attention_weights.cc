// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <vector>

#include "ops_transformer/base/validate.h"
#include "ops_transformer/block/attention_block.h"
#include "ops_transformer/gemm/linear_kernel.h"

namespace ops_transformer {
namespace {

constexpr const char* kOp = "AttentionWeights::pack";
constexpr std::int64_t kMaxHeads = 65536, kMaxDim = 768;

void validate(const ConstTensorView& wq, const ConstTensorView& wk, const ConstTensorView& wv,
              const ConstTensorView& wo, const AttentionShape& s) {
  const auto check = [](bool good, const char* name, std::int64_t value, std::string_view limit) {
    if (!good) invalid(kOp, fmt::format("{} is {}, must be {}", name, value, limit));
  };
  check(s.num_q_heads >= 1 && s.num_q_heads <= kMaxHeads, "num_q_heads", s.num_q_heads, "from 1 to 65536");
  check(s.num_kv_heads >= 1 && s.num_q_heads % s.num_kv_heads == 0, "num_kv_heads", s.num_kv_heads,
        fmt::format("a divisor of num_q_heads = {}", s.num_q_heads));
  check(s.head_dim >= 1 && s.head_dim <= kMaxDim, "head_dim", s.head_dim, "from 1 to 768");
  check(s.value_dim >= 1 && s.value_dim <= kMaxDim, "value_dim", s.value_dim, "from 1 to 768");
  for (const auto& [name, weight] : {std::pair{"wq", &wq}, {"wk", &wk}, {"wv", &wv}, {"wo", &wo}}) {
    check_rank(kOp, name, *weight, 2);
  }
  const std::int64_t hidden = wq.size(1);
  check_shape(kOp, "wq", wq, {s.num_q_heads * s.head_dim, hidden});
  check_shape(kOp, "wk", wk, {s.num_kv_heads * s.head_dim, hidden});
  check_shape(kOp, "wv", wv, {s.num_kv_heads * s.value_dim, hidden});
  check_shape(kOp, "wo", wo, {hidden, s.num_q_heads * s.value_dim});
}

// Sixteen rows of a weight, `step` apart.
ConstTensorView tile_of(const ConstTensorView& weight, std::int64_t first, std::int64_t step) {
  const DTypeInfo& info = dtype_info(weight.dtype());
  const std::int64_t bytes = first * weight.stride(0) / std::int64_t(info.block_len) * std::int64_t(info.block_bytes);
  return {weight.as<std::byte>() + bytes,
          weight.dtype(),
          {kTileOutputs, weight.size(1)},
          {step * weight.stride(0), weight.stride(1)}};
}

void add_pairs(std::vector<ConstTensorView>& parts, const ConstTensorView& weight, std::int64_t head_dim,
               RopeStyle style) {
  const std::int64_t half = head_dim / 2;
  for (std::int64_t head = 0; head < weight.size(0); head += head_dim) {
    for (std::int64_t pair = 0; pair < half; pair += kTileOutputs) {
      if (style == RopeStyle::interleaved) {
        parts.push_back(tile_of(weight, head + 2 * pair, 2));
        parts.push_back(tile_of(weight, head + 2 * pair + 1, 2));
      } else {
        parts.push_back(tile_of(weight, head + pair, 1));
        parts.push_back(tile_of(weight, head + half + pair, 1));
      }
    }
  }
}

}  // namespace

AttentionWeights AttentionWeights::pack(Context& context, const ConstTensorView& wq, const ConstTensorView& wk,
                                        const ConstTensorView& wv, const ConstTensorView& wo,
                                        const AttentionShape& shape) {
  AttentionWeights weights;
  weights.shape_ = shape;
  if (shape.value_dim == 0) weights.shape_.value_dim = shape.head_dim;
  validate(wq, wk, wv, wo, weights.shape_);
  weights.paired_ = shape.head_dim % (2 * kTileOutputs) == 0;
  std::vector<ConstTensorView> parts;
  if (weights.paired_) {
    // Rows are checked here, since parts are cut from them.
    for (const auto& [name, weight] : {std::pair{"wq", &wq}, {"wk", &wk}}) {
      check_rows(kOp, name, *weight);
      const auto block_len = std::int64_t(dtype_info(weight->dtype()).block_len);
      if (weight->stride(0) % block_len != 0) {
        invalid(kOp, fmt::format("rows of {} must be whole blocks of {} elements, got stride {}", name, block_len,
                                 weight->stride(0)));
      }
    }
    add_pairs(parts, wq, shape.head_dim, shape.rope_style);
    add_pairs(parts, wk, shape.head_dim, shape.rope_style);
    parts.push_back(wv);
  } else {
    parts = {wq, wk, wv};
  }
  weights.qkv_ = PackedWeights::pack(context, parts);
  weights.output_ = PackedWeights::pack(context, wo);
  return weights;
}

}  // namespace ops_transformer
