// SPDX-License-Identifier: Apache-2.0
// levels: generic avx2 avx512 avx512_bf16
#include "ops_transformer/attention/attention_kernel.h"

#include "ops_transformer/simd/begin.h"

namespace ops_transformer::OPS_TRANSFORMER_ISA {
namespace {

#include "ops_transformer/attention/attention_state.inl.h"
#include "ops_transformer/simd/convert.inl.h"

}  // namespace

void merge_attention_row(const AttentionPart* parts, int num_parts, AttentionUnits units, const MergedRow& row,
                         float* weights) noexcept {
  float m = kMinusInfinity, l = 0.0f;
  for (int p = 0; p < num_parts; ++p) {
    if (parts[p].l != 0.0f) m = m > parts[p].m ? m : parts[p].m;
  }
  for (int p = 0; p < num_parts; ++p) {
    weights[p] = 0.0f;
    if (parts[p].l == 0.0f) continue;
    weights[p] = rescale_factor(splat(parts[p].m * units.to_log2), splat(m * units.to_log2))[0];
    l += weights[p] * parts[p].l;
  }
  // A quotient for each part, not one factor of the sum: where a part is the only one its own is exactly 1.
  for (int p = 0; p < num_parts && l != 0.0f; ++p) weights[p] = weights[p] * parts[p].o_scale / l * row.scale;
  for (std::int64_t i = 0; i < row.value_dim; i += kLanes) {
    const int lanes = int(row.value_dim - i < kLanes ? row.value_dim - i : kLanes);
    F32 o{};
    for (int p = 0; p < num_parts; ++p) {
      if (parts[p].l != 0.0f && parts[p].o)
        o = fma(load_any(parts[p].o, parts[p].o_dtype, i, lanes), splat(weights[p]), o);
    }
    store_any(row.out, row.out_dtype, row.out_offset + i, o, lanes);
  }
  store_softmax(row.softmax, m * units.to_ln, l);
}

}  // namespace ops_transformer::OPS_TRANSFORMER_ISA
#include "ops_transformer/simd/end.h"
