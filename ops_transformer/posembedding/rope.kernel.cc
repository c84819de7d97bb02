// SPDX-License-Identifier: Apache-2.0
// levels: generic avx2 avx512 avx512_bf16
#include "ops_transformer/posembedding/rope_kernel.h"

#include "ops_transformer/simd/begin.h"

namespace ops_transformer::OPS_TRANSFORMER_ISA {
namespace {

#include "ops_transformer/posembedding/rope.inl.h"

template <class T>
void rotate_tokens(const RopeArgs& args, std::int64_t first, std::int64_t last, float* scratch) noexcept {
  for (std::int64_t token = first; token < last; ++token) {
    const Rotation rotation = rotation_at(args.angles, rope_position(args, token), scratch);
    const T* x = static_cast<const T*>(args.x) + token * args.x_token_stride;
    T* out = static_cast<T*>(args.out) + token * args.out_token_stride;
    for (std::int64_t head = 0; head < args.num_heads; ++head) {
      rotate_head(x + head * args.x_head_stride, out + head * args.out_head_stride, args.head_dim, args.angles,
                  rotation);
    }
  }
}

}  // namespace

void rope_tokens(const RopeArgs& args, std::int64_t first, std::int64_t last, float* scratch) noexcept {
  if (args.dtype == DType::f32) {
    rotate_tokens<float>(args, first, last, scratch);
  } else if (args.dtype == DType::bf16) {
    rotate_tokens<BFloat16>(args, first, last, scratch);
  } else {
    rotate_tokens<Float16>(args, first, last, scratch);
  }
}

}  // namespace ops_transformer::OPS_TRANSFORMER_ISA
#include "ops_transformer/simd/end.h"
