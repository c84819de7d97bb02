// SPDX-License-Identifier: Apache-2.0
// levels: generic avx2 avx512 avx512_bf16
#include "ops_transformer/kv_cache/kv_rms_norm_rope_cache_kernel.h"
#include "ops_transformer/posembedding/rope_kernel.h"

#include "ops_transformer/simd/begin.h"

namespace ops_transformer::OPS_TRANSFORMER_ISA {
namespace {

#include "ops_transformer/posembedding/rope.inl.h"

#include "ops_transformer/simd/convert.inl.h"

#include "ops_transformer/norm/rms_norm.inl.h"

// In place: row / rms(row) * gamma.
void normalise(float* row, const float* gamma, std::int64_t n, float eps) noexcept {
  SquareSum squares;
  std::int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    for (int j = 0; j < 4; ++j) squares.add(j, load(row + i + j * kLanes));
  }
  for (; i < n; i += kLanes) squares.add(0, load_first(row + i, int(n - i < kLanes ? n - i : kLanes)));
  const F32 factor = splat(inverse_rms(row, n, squares.total(), eps));
  for (i = 0; i < n; i += kLanes) {
    const int lanes = int(n - i < kLanes ? n - i : kLanes);
    store_lanes(row + i, load_lanes(row + i, lanes) * factor * load_lanes(gamma + i, lanes), lanes);
  }
}

// Pairs (2i, 2i + 1) of x turned and put at (i, i + half), each output by its own cosine and sine.
void rotate_interleaved_to_halves(const float* x, const float* cosines, const float* sines, float* out,
                                  std::int64_t dim) noexcept {
  const std::int64_t half = dim / 2;
  for (std::int64_t i = 0; i < half; i += kLanes) {
    const int lanes = int(half - i < kLanes ? half - i : kLanes);
    const int low = 2 * lanes < kLanes ? 2 * lanes : kLanes, high = 2 * lanes - low;
    const F32 a = load_lanes(x + 2 * i, low), b = high ? load_lanes(x + 2 * i + kLanes, high) : F32{};
    const F32 even = even_lanes(a, b), odd = odd_lanes(a, b);
    const F32 first = fma(even, load_lanes(cosines + i, lanes), -(odd * load_lanes(sines + i, lanes)));
    const F32 second = fma(odd, load_lanes(cosines + half + i, lanes), even * load_lanes(sines + half + i, lanes));
    store_lanes(out + i, first, lanes);
    store_lanes(out + half + i, second, lanes);
  }
}

// Codes half to even, within [-128, 127]; NaN becomes 0.
void store_codes(std::int8_t* to, const float* row, const CacheTarget& target, std::int64_t first,
                 std::int64_t n) noexcept {
  for (std::int64_t i = 0; i < n; i += kLanes) {
    const int lanes = int(n - i < kLanes ? n - i : kLanes);
    F32 y = load_lanes(row + i, lanes);
    if (target.scales) y *= load_lanes(target.scales + first + i, lanes);
    if (target.offsets) y += load_lanes(target.offsets + first + i, lanes);
    y = min(max(y, splat(-128.0f)), splat(127.0f));
    const F32 whole = round(y);
    const I32 codes = __builtin_convertvector(whole == whole ? whole : F32{}, I32);
    for (int j = 0; j < lanes; ++j) to[i + j] = std::int8_t(codes[j]);
  }
}

void store_row(const float* row, const CacheTarget& target, DType out_dtype, std::int64_t slot, std::int64_t head,
               std::int64_t row_of_out) noexcept {
  if (target.out) {
    for (std::int64_t i = 0; i < target.dim; i += kLanes) {
      const int lanes = int(target.dim - i < kLanes ? target.dim - i : kLanes);
      store_any(target.out, out_dtype, row_of_out * target.dim + i, load_lanes(row + i, lanes), lanes);
    }
  }
  if (slot < 0) return;
  const std::int64_t at = slot / target.page_size * target.page_stride + head * target.head_stride +
                          slot % target.page_size * target.slot_stride;
  for (std::int64_t first = 0, chunk = 0; first < target.dim; first += target.chunk_len, ++chunk) {
    const std::int64_t to = at + chunk * target.chunk_stride;
    if (target.dtype == DType::s8) {
      store_codes(static_cast<std::int8_t*>(target.data) + to, row + first, target, first, target.chunk_len);
      continue;
    }
    for (std::int64_t i = 0; i < target.chunk_len; i += kLanes) {
      const int lanes = int(target.chunk_len - i < kLanes ? target.chunk_len - i : kLanes);
      store_any(target.data, target.dtype, to + i, load_lanes(row + first + i, lanes), lanes);
    }
  }
}

}  // namespace

void kv_rms_norm_rope_tokens(const KvRmsNormRopeArgs& args, std::int64_t first, std::int64_t last,
                             float* scratch) noexcept {
  const std::int64_t rope_end = args.rope_begin + args.rope_dim,
                     len = args.norm_len > rope_end ? args.norm_len : rope_end;
  float* const row = scratch;
  float* const turned = scratch + (len + 15) / 16 * 16;
  for (std::int64_t token = first; token < last; ++token) {
    for (std::int64_t head = 0; head < args.num_heads; ++head) {
      const std::int64_t slot = args.slots[token], out_row = head * args.k.out_head_rows + token;
      read_row(args.kv, args.dtype, token * args.kv_token_stride + head * args.kv_head_stride, len, row);
      normalise(row, args.gamma, args.norm_len, args.eps);
      rotate_interleaved_to_halves(row + args.rope_begin, args.cosines + token * args.cos_stride,
                                   args.sines + token * args.sin_stride, turned, args.rope_dim);
      if (args.v) {
        // Keys are the rotated start and the rest of the normalised row.
        for (std::int64_t i = rope_end; i < args.norm_len; ++i) turned[i] = row[i];
        store_row(turned, args.k, args.dtype, slot, head, out_row);
        read_row(args.v, args.dtype, token * args.v_token_stride + head * args.v_head_stride, args.c.dim, row);
      } else {
        store_row(turned, args.k, args.dtype, slot, head, out_row);
      }
      store_row(row, args.c, args.dtype, slot, head, out_row);
    }
  }
}

}  // namespace ops_transformer::OPS_TRANSFORMER_ISA
#include "ops_transformer/simd/end.h"
