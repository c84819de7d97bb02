// SPDX-License-Identifier: Apache-2.0
// levels: generic avx2 avx512 avx512_bf16
#include "ops_transformer/attention/attention_kernel.h"
#include "ops_transformer/attention/flash_decode_layout.h"

#include "ops_transformer/simd/begin.h"

namespace ops_transformer::OPS_TRANSFORMER_ISA {
namespace {

#include "ops_transformer/attention/attention_state.inl.h"
#include "ops_transformer/attention/lane_shuffle.inl.h"
#include "ops_transformer/gemm/tile_engine.inl.h"
#include "ops_transformer/simd/convert.inl.h"

#include "ops_transformer/attention/attention_rows.inl.h"

#include "ops_transformer/attention/score_rule.inl.h"

#include "ops_transformer/attention/decode_rule.inl.h"

#if defined(OPS_TRANSFORMER_ISA_avx512_bf16)
  #include "ops_transformer/attention/bf16_pairs.inl.h"
#endif
#include "ops_transformer/attention/kv_codes.inl.h"

#include "ops_transformer/attention/flash_decode.inl.h"

}  // namespace

void flash_decode(const AttentionArgs& args, const AttentionSequence& sequence, const AttentionItem& item,
                  std::byte* scratch) noexcept {
  if (args.kv_dtype == DType::f32) {
    decode<WidenedKeys<float>>(args, sequence, item, scratch);
  } else if (args.kv_dtype == DType::f16) {
    decode<WidenedKeys<Float16>>(args, sequence, item, scratch);
  } else if (args.kv_dtype == DType::s8) {
    decode<WidenedKeys<std::int8_t>>(args, sequence, item, scratch);
  } else {
#if defined(OPS_TRANSFORMER_ISA_avx512_bf16)
    decode<Bf16Keys>(args, sequence, item, scratch);
#else
    decode<WidenedKeys<BFloat16>>(args, sequence, item, scratch);
#endif
  }
}

}  // namespace ops_transformer::OPS_TRANSFORMER_ISA
#include "ops_transformer/simd/end.h"
