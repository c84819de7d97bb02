// SPDX-License-Identifier: Apache-2.0
// levels: generic avx2 avx512 avx512_bf16
#include "ops_transformer/kv_cache/rope_kv_write_kernel.h"

#include "ops_transformer/simd/begin.h"

namespace ops_transformer::OPS_TRANSFORMER_ISA {
namespace {

#include "ops_transformer/posembedding/rope.inl.h"
#include "ops_transformer/simd/convert.inl.h"

#include "ops_transformer/kv_cache/kv_copy.inl.h"

#include "ops_transformer/norm/rms_norm.inl.h"

// One head as floats, divided by its root mean square.
template <class T>
void normalise_head(const T* x, const float* weight, float eps, float* head, std::int64_t head_dim) noexcept {
  SquareSum squares;
  std::int64_t i = 0;
  for (; i + 4 * kLanes <= head_dim; i += 4 * kLanes) {
    for (int j = 0; j < 4; ++j) {
      const F32 v = load(x + i + j * kLanes);
      store(head + i + j * kLanes, v);
      squares.add(j, v);
    }
  }
  for (; i < head_dim; i += kLanes) {
    const int lanes = int(head_dim - i < kLanes ? head_dim - i : kLanes);
    const F32 v = load_first(x + i, lanes);
    store_first(head + i, v, lanes);
    squares.add(0, v);
  }
  const F32 factor = splat(inverse_rms(head, head_dim, squares.total(), eps));
  for (i = 0; i + kLanes <= head_dim; i += kLanes) store(head + i, load(head + i) * factor * load(weight + i));
  if (const int lanes = int(head_dim - i); lanes > 0) {
    store_first(head + i, load_first(head + i, lanes) * factor * load_first(weight + i, lanes), lanes);
  }
}

struct HeadNorm {
  const float* weight;  // nullptr: none
  float eps;
  float* head;  // scratch
};

template <class In, class Out>
OPS_TRANSFORMER_INLINE void rotate_heads(const In* x, std::int64_t x_head_stride, Out* out,
                                         std::int64_t out_head_stride, std::int64_t num_heads, std::int64_t head_dim,
                                         const RopeAngles& angles, Rotation rotation, HeadNorm norm) noexcept {
  for (std::int64_t i = 0; i < num_heads; ++i, x += x_head_stride, out += out_head_stride) {
    if (norm.weight) {
      normalise_head(x, norm.weight, norm.eps, norm.head, head_dim);
      rotate_head(norm.head, out, head_dim, angles, rotation);
    } else {
      rotate_head(x, out, head_dim, angles, rotation);
    }
  }
}

template <class New, class Cached>
void write_tokens(const RopeKvWriteArgs& args, std::int64_t first, std::int64_t last, float* scratch) noexcept {
  float* const head = scratch + 2 * args.q.angles.half;
  for (std::int64_t token = first; token < last; ++token) {
    const Rotation rotation = rotation_at(args.q.angles, rope_position(args.q, token), scratch);
    auto* q = static_cast<New*>(args.q.out) + token * args.q.out_token_stride;
    rotate_heads(q, args.q.out_head_stride, q, args.q.out_head_stride, args.q.num_heads, args.q.head_dim, args.q.angles,
                 rotation, {args.q_norm, args.norm_eps, head});
    const std::int64_t slot = args.slots[token];
    if (slot < 0) continue;
    const std::int64_t page = slot / args.page_size, row = slot % args.page_size;
    rotate_heads(static_cast<const New*>(args.k.from) + token * args.k_token_stride, args.k.from_head_stride,
                 static_cast<Cached*>(args.k.to) + page * args.k_page_stride + row * args.k_slot_stride,
                 args.k.to_head_stride, args.k.num_heads, args.k.dim, args.q.angles, rotation,
                 {args.k_norm, args.norm_eps, head});
    copy_token(args.v, token * args.v_token_stride, page * args.v_page_stride + row * args.v_slot_stride);
  }
}

}  // namespace

void rope_kv_write_tokens(const RopeKvWriteArgs& args, std::int64_t first, std::int64_t last, float* scratch) noexcept {
  const bool new_f32 = args.k.from_dtype == DType::f32, cached_f32 = args.k.to_dtype == DType::f32;
  if (new_f32 && cached_f32) {
    write_tokens<float, float>(args, first, last, scratch);
  } else if (new_f32) {
    write_tokens<float, BFloat16>(args, first, last, scratch);
  } else if (cached_f32) {
    write_tokens<BFloat16, float>(args, first, last, scratch);
  } else {
    write_tokens<BFloat16, BFloat16>(args, first, last, scratch);
  }
}

}  // namespace ops_transformer::OPS_TRANSFORMER_ISA
#include "ops_transformer/simd/end.h"
