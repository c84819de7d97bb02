// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/kv_cache/kv_rms_norm_rope_cache.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <span>
#include <tuple>
#include <utility>

#include "ops_transformer/base/validate.h"
#include "ops_transformer/kv_cache/kv_rms_norm_rope_cache_kernel.h"
#include "ops_transformer/profiler/profiler.h"

namespace ops_transformer {
namespace {

constexpr const char* kOp = "kv_rms_norm_rope_cache";

struct Sizes {
  std::int64_t batch, num_heads, seq, norm_len, rope_dim, k_dim, c_dim;
};

bool is_nz(KvCacheMode mode) { return mode == KvCacheMode::pa_nz || mode == KvCacheMode::pa_blk_nz; }
bool is_by_run(KvCacheMode mode) { return mode == KvCacheMode::pa_blk || mode == KvCacheMode::pa_blk_nz; }

// Elements of a chunk: 32 bytes.
std::int64_t chunk_of(const TensorView& cache) { return 32 / std::int64_t(element_bytes(cache.dtype())); }

void check_cache(const char* name, const TensorView& cache, const ConstTensorView& kv, const Sizes& s, std::int64_t dim,
                 KvCacheMode mode) {
  check_rank(kOp, name, cache, 4);
  check_dtype(kOp, name, cache, {kv.dtype(), DType::s8});
  check_rows(kOp, name, cache);
  check_output(kOp, name, cache);
  if (is_nz(mode)) {
    const std::int64_t e = chunk_of(cache);
    if (dim % e != 0)
      invalid(kOp, fmt::format("{} has rows of {}, must be a multiple of {} in this mode", name, dim, e));
    check_shape(kOp, name, cache, {-1, s.num_heads * dim / e, -1, e});
  } else {
    check_shape(kOp, name, cache, {mode == KvCacheMode::norm ? s.batch : -1, s.num_heads, -1, dim});
  }
}

void check_apart(const ConstTensorView& kv, const ConstTensorView& gamma, const ConstTensorView& cos,
                 const ConstTensorView& sin, const ConstTensorView& index, const TensorView& k_cache,
                 const TensorView& c_cache, const KvRmsNormRopeCacheOptions& options) {
  using Named = std::pair<const char*, std::optional<ConstTensorView>>;
  const Named inputs[] = {{"kv", kv},
                          {"gamma", gamma},
                          {"cos", cos},
                          {"sin", sin},
                          {"index", index},
                          {"v", options.v},
                          {"k_scale", options.k_scale},
                          {"k_offset", options.k_offset},
                          {"c_scale", options.c_scale},
                          {"c_offset", options.c_offset}};
  const Named outputs[] = {
      {"k_cache", k_cache}, {"c_cache", c_cache}, {"k_out", options.k_out}, {"c_out", options.c_out}};
  for (const auto& [name, output] : outputs) {
    if (!output) continue;
    for (const auto& [input_name, input] : inputs) {
      if (input) check_no_overlap(kOp, name, *output, input_name, *input);
    }
    for (const auto& [other_name, other] : outputs) {
      if (other_name == name) break;
      if (other) check_no_overlap(kOp, name, *output, other_name, *other);
    }
  }
}

Sizes validate(const ConstTensorView& kv, const ConstTensorView& gamma, const ConstTensorView& cos,
               const ConstTensorView& sin, const ConstTensorView& index, const TensorView& k_cache,
               const TensorView& c_cache, const KvRmsNormRopeCacheOptions& options) {
  if (options.mode > KvCacheMode::pa_blk_nz) invalid(kOp, fmt::format("mode is {}, must be 0...4", int(options.mode)));
  if (!(options.eps >= 0.0f && options.eps <= 1.0f)) {
    invalid(kOp, fmt::format("eps is {}, must be from 0 to 1", options.eps));
  }
  check_rank(kOp, "kv", kv, 4);
  check_dtype(kOp, "kv", kv, {DType::f32, DType::bf16, DType::f16});
  check_rows(kOp, "kv", kv);
  check_rank(kOp, "gamma", gamma, 1);
  check_dtype(kOp, "gamma", gamma, {DType::f32});
  check_rows(kOp, "gamma", gamma);
  check_rank(kOp, "cos", cos, 3);
  Sizes s{kv.size(0), kv.size(1), kv.size(2), gamma.size(0), cos.size(2), cos.size(2), gamma.size(0)};
  for (const auto& [name, table] : {std::pair{"cos", &cos}, {"sin", &sin}}) {
    check_shape(kOp, name, *table, {table->size(0) == 1 ? 1 : s.batch, s.seq, s.rope_dim});
    check_dtype(kOp, name, *table, {DType::f32});
    check_rows(kOp, name, *table);
  }
  if (s.rope_dim < 2 || s.rope_dim % 2 != 0) {
    invalid(kOp, fmt::format("cos has rows of {}, must be even and at least 2", s.rope_dim));
  }
  if (options.v) {
    s.k_dim = s.norm_len;
    if (s.norm_len < s.rope_dim) {
      invalid(kOp, fmt::format("gamma has {} elements, must have at least rope_dim = {}", s.norm_len, s.rope_dim));
    }
    check_shape(kOp, "v", *options.v, {s.batch, s.num_heads, s.seq, -1});
    check_dtype(kOp, "v", *options.v, {kv.dtype()});
    check_rows(kOp, "v", *options.v);
    s.c_dim = options.v->size(3);
  }
  check_shape(kOp, "kv", kv, {-1, -1, -1, options.v ? s.norm_len : s.norm_len + s.rope_dim});
  check_cache("k_cache", k_cache, kv, s, s.k_dim, options.mode);
  check_cache("c_cache", c_cache, kv, s, s.c_dim, options.mode);
  const std::int64_t pages = k_cache.size(0), page_size = k_cache.size(2);
  if (c_cache.size(0) != pages || c_cache.size(2) != page_size) {
    invalid(kOp, fmt::format("c_cache has {} pages of {}, must have k_cache's {} of {}", c_cache.size(0),
                             c_cache.size(2), pages, page_size));
  }
  if (is_by_run(options.mode) && page_size < 1) invalid(kOp, "k_cache has pages of 0 tokens, must have at least 1");
  check_dtype(kOp, "index", index, {DType::i64});
  if (options.mode == KvCacheMode::norm) {
    check_shape(kOp, "index", index, {s.batch, s.seq});
  } else if (is_by_run(options.mode)) {
    check_shape(kOp, "index", index, {s.batch * ((s.seq + page_size - 1) / page_size)});
  } else {
    check_shape(kOp, "index", index, {s.batch * s.seq});
  }
  for (const auto& [name, values, dim, cache] : {std::tuple{"k_scale", &options.k_scale, s.k_dim, &k_cache},
                                                 {"k_offset", &options.k_offset, s.k_dim, &k_cache},
                                                 {"c_scale", &options.c_scale, s.c_dim, &c_cache},
                                                 {"c_offset", &options.c_offset, s.c_dim, &c_cache}}) {
    if (!*values) continue;
    check_shape(kOp, name, **values, {dim});
    check_dtype(kOp, name, **values, {DType::f32});
    check_rows(kOp, name, **values);
    if (cache->dtype() != DType::s8) invalid(kOp, fmt::format("{} is given, must not be unless its cache is s8", name));
  }
  for (const auto& [name, out, dim] :
       {std::tuple{"k_out", &options.k_out, s.k_dim}, {"c_out", &options.c_out, s.c_dim}}) {
    if (!*out) continue;
    check_shape(kOp, name, **out, {s.batch, s.num_heads, s.seq, dim});
    check_dtype(kOp, name, **out, {kv.dtype()});
    if (!(*out)->contiguous()) invalid(kOp, fmt::format("{} must be contiguous", name));
  }
  check_apart(kv, gamma, cos, sin, index, k_cache, c_cache, options);
  return s;
}

// The slot of each token: page * page_size + row.
void write_slots(const ConstTensorView& index, const Sizes& s, KvCacheMode mode, std::int64_t num_pages,
                 std::int64_t page_size, std::span<std::int64_t> slots) {
  const auto check = [](std::int64_t value, std::int64_t end, auto... at) {
    if (value >= -1 && value < end) return;
    const std::int64_t places[] = {at...};
    invalid(kOp, fmt::format("index[{}] is {}, must be -1 or from 0 to {}", fmt::join(places, ", "), value, end - 1));
  };
  const std::int64_t* const values = index.as<std::int64_t>();
  for (std::int64_t b = 0; b < s.batch; ++b) {
    for (std::int64_t t = 0; t < s.seq; ++t) {
      std::int64_t& slot = slots[std::size_t(b * s.seq + t)];
      if (mode == KvCacheMode::norm) {
        slot = values[b * index.stride(0) + t * index.stride(1)];
        check(slot, page_size, b, t);
        if (slot >= 0) slot += b * page_size;
      } else if (is_by_run(mode)) {
        const std::int64_t run = b * ((s.seq + page_size - 1) / page_size) + t / page_size;
        slot = values[run * index.stride(0)];
        check(slot, num_pages * page_size, run);
        if (slot >= 0) slot = slot / page_size * page_size + t % page_size;
      } else {
        slot = values[(b * s.seq + t) * index.stride(0)];
        check(slot, num_pages * page_size, b * s.seq + t);
      }
    }
  }
}

CacheTarget target_of(const TensorView& cache, std::int64_t num_heads, std::int64_t dim, bool nz,
                      const std::optional<ConstTensorView>& scale, const std::optional<ConstTensorView>& offset,
                      const std::optional<TensorView>& out) {
  CacheTarget target{};
  target.data = cache.data();
  target.scales = scale ? scale->as<float>() : nullptr;
  target.offsets = offset ? offset->as<float>() : nullptr;
  target.dim = dim;
  target.page_stride = cache.stride(0);
  target.slot_stride = cache.stride(2);
  target.page_size = cache.size(2);
  target.chunk_stride = nz ? cache.stride(1) : 0;
  target.chunk_len = nz ? cache.size(3) : dim;
  target.head_stride = nz ? cache.size(1) / std::max<std::int64_t>(1, num_heads) * cache.stride(1) : cache.stride(1);
  target.out = out ? out->data() : nullptr;
  target.dtype = cache.dtype();
  return target;
}

}  // namespace

void kv_rms_norm_rope_cache(Context& context, const ConstTensorView& kv, const ConstTensorView& gamma,
                            const ConstTensorView& cos, const ConstTensorView& sin, const ConstTensorView& index,
                            const TensorView& k_cache, const TensorView& c_cache,
                            const KvRmsNormRopeCacheOptions& options) {
  const Sizes s = validate(kv, gamma, cos, sin, index, k_cache, c_cache, options);
  if (s.batch * s.seq == 0 || s.num_heads == 0) return;
  CallScope call(context);
  const auto slots = call.arena().allocate<std::int64_t>(std::size_t(s.batch * s.seq));
  write_slots(index, s, options.mode, k_cache.size(0), k_cache.size(2), slots);
  const auto kv_bytes = std::int64_t(element_bytes(kv.dtype()));
  const std::int64_t rows = s.batch * s.seq * s.num_heads;
  Zone zone(
      context, kOp,
      {.bytes = rows * (kv.size(3) * kv_bytes + (options.v ? s.c_dim * kv_bytes : 0) +
                        s.k_dim * (std::int64_t(element_bytes(k_cache.dtype())) + (options.k_out ? kv_bytes : 0)) +
                        s.c_dim * (std::int64_t(element_bytes(c_cache.dtype())) + (options.c_out ? kv_bytes : 0))) +
                s.batch * s.seq * s.rope_dim * 8,
       .flops = rows * (4 * s.norm_len + 3 * s.rope_dim)});
  KvRmsNormRopeFn* const kernel = kv_rms_norm_rope_tokens.at(context.isa());
  const std::size_t row_len = align_up(std::size_t(std::max({kv.size(3), s.c_dim})), 16);
  const auto scratch = call.arena().allocate<float>(std::size_t(call.num_threads()) * 2 * row_len);
  const bool nz = is_nz(options.mode);
  for (std::int64_t b = 0; b < s.batch; ++b) {
    KvRmsNormRopeArgs args{};
    const auto at = [&](const ConstTensorView& view, std::int64_t step) {
      return view.as<std::byte>() + b * step * std::int64_t(element_bytes(view.dtype()));
    };
    args.kv = at(kv, kv.stride(0));
    args.kv_token_stride = kv.stride(2);
    args.kv_head_stride = kv.stride(1);
    if (options.v) {
      args.v = at(*options.v, options.v->stride(0));
      args.v_token_stride = options.v->stride(2);
      args.v_head_stride = options.v->stride(1);
    }
    args.gamma = gamma.as<float>();
    args.cosines = reinterpret_cast<const float*>(at(cos, cos.size(0) == 1 ? 0 : cos.stride(0)));
    args.sines = reinterpret_cast<const float*>(at(sin, sin.size(0) == 1 ? 0 : sin.stride(0)));
    args.cos_stride = cos.stride(1);
    args.sin_stride = sin.stride(1);
    args.slots = slots.data() + b * s.seq;
    args.k = target_of(k_cache, s.num_heads, s.k_dim, nz, options.k_scale, options.k_offset, options.k_out);
    args.c = target_of(c_cache, s.num_heads, s.c_dim, nz, options.c_scale, options.c_offset, options.c_out);
    for (CacheTarget* target : {&args.k, &args.c}) {
      if (target->out) {
        target->out = static_cast<std::byte*>(target->out) + b * s.num_heads * s.seq * target->dim * kv_bytes;
      }
      target->out_head_rows = s.seq;
    }
    args.num_heads = s.num_heads;
    args.norm_len = s.norm_len;
    args.rope_begin = options.v ? 0 : s.norm_len;
    args.rope_dim = s.rope_dim;
    args.dtype = kv.dtype();
    args.eps = options.eps;
    call.parallel_rows(s.seq, s.num_heads * (kv.size(3) + s.c_dim),
                       [&](std::int64_t first, std::int64_t last, int worker) {
                         kernel(args, first, last, scratch.data() + std::size_t(worker) * 2 * row_len);
                       });
  }
}

}  // namespace ops_transformer
