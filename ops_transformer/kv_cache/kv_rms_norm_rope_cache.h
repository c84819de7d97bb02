// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "ops_transformer/base/context.h"
#include "ops_transformer/base/error.h"
#include "ops_transformer/base/tensor_view.h"

namespace ops_transformer {

/// How an index names places of a cache, and how the cache lies.
enum class KvCacheMode : std::uint8_t {
  norm,       // cache [batch, num_heads, max_len, dim]; index [batch, seq]: the row in the token's own sequence
  pa,         // cache [num_pages, num_heads, page_size, dim]; index [batch * seq]: page * page_size + row
  pa_nz,      // cache [num_pages, num_heads * dim / e, page_size, e], e = 32 bytes of elements; index as pa
  pa_blk,     // cache as pa; index [batch * ceil(seq / page_size)]: of each run of page_size tokens, its first place
  pa_blk_nz,  // cache as pa_nz, index as pa_blk
};

struct KvRmsNormRopeCacheOptions {
  KvCacheMode mode = KvCacheMode::norm;
  float eps = 1e-5f;  // 0 … 1
  std::optional<ConstTensorView> v{};
  // Of an s8 cache: code = round(x * scale + offset), half to even, within [-128, 127]; [dim] f32; unset: 1 and 0.
  std::optional<ConstTensorView> k_scale{}, k_offset{}, c_scale{}, c_offset{};
  // Out: the rows unquantised, of skipped tokens too, [batch, num_heads, seq, dim], dtype of kv, contiguous.
  std::optional<TensorView> k_out{}, c_out{};
};

/// What a decoder with latent attention writes for each token (DeepSeek-V2, 2024), in one pass: the first part of a row
/// of kv is RMS-normalised and goes to c_cache, the rest is rotated and goes to k_cache. Pairs (2i, 2i + 1) turn and
/// stand at (i, i + rope_dim / 2) afterwards: out = y cos + (-y2, y1) sin, y = (evens, odds). With v, all of the row is
/// normalised, its first rope_dim elements are rotated, the row goes to k_cache and v to c_cache. Computed in f32 with
/// one rounding.
///
/// kv        [batch, num_heads, seq, norm_len + rope_dim]  f32 | bf16 | f16, last dimension contiguous (of every
/// tensor);
///                                                         with v: [..., norm_len], norm_len >= rope_dim
/// gamma     [norm_len]             f32
/// cos, sin  [batch or 1, seq, rope_dim]  f32, rope_dim even
/// index     i64, as the mode says; -1: the token, or run of tokens, is written to no cache
/// k_cache   as the mode says, dim = rope_dim (with v: norm_len); dtype of kv, or s8
/// c_cache   the same, dim = norm_len (with v: v's); dtype of kv, or s8
/// options.v [batch, num_heads, seq, value_dim]  dtype of kv
/// No output overlaps an input or another output. Throws InvalidArgument, which names the argument; then nothing has
/// been written. What two tokens write to one place is undefined.
OPS_TRANSFORMER_API void kv_rms_norm_rope_cache(Context& context, const ConstTensorView& kv,
                                                const ConstTensorView& gamma, const ConstTensorView& cos,
                                                const ConstTensorView& sin, const ConstTensorView& index,
                                                const TensorView& k_cache, const TensorView& c_cache,
                                                const KvRmsNormRopeCacheOptions& options = {});

}  // namespace ops_transformer
