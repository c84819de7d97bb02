// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/kv_cache/kv_rms_norm_rope_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "ops_transformer/kv_cache/kv_rms_norm_rope_cache_kernel.h"
#include "ops_transformer/norm/rms_norm_reference.h"
#include "tests/support/dtype_of.h"
#include "tests/support/guarded_buffer.h"
#include "tests/support/message_of.h"
#include "tests/support/random.h"
#include "tests/support/tolerance.h"

namespace ops_transformer {
namespace {

using test::GuardedBuffer;
using test::kDType;
using test::message_of;

constexpr std::int64_t kBatch = 2, kSeq = 5, kPages = 4, kPageSize = 3;

template <class C>
constexpr DType kCacheType = DType::s8;
template <>
constexpr DType kCacheType<float> = DType::f32;
template <>
constexpr DType kCacheType<BFloat16> = DType::bf16;
template <>
constexpr DType kCacheType<Float16> = DType::f16;

struct Row {
  std::vector<double> value, magnitude;
};

// The operator's definition, in float64, for one row of kv.
struct Expected {
  Row k, c;
};
template <class T>
Row as_row(const T* x, std::int64_t n) {
  Row row;
  for (std::int64_t i = 0; i < n; ++i) {
    row.value.push_back(to_float(x[i]));
    row.magnitude.push_back(std::abs(row.value.back()));
  }
  return row;
}
Row rotated(const std::vector<double>& x, const float* cosines, const float* sines) {
  const std::size_t n = x.size(), half = n / 2;
  Row row{std::vector<double>(n), std::vector<double>(n)};
  std::vector<double> y(n), turned(n);
  for (std::size_t i = 0; i < half; ++i) {
    y[i] = x[2 * i];
    y[i + half] = x[2 * i + 1];
  }
  for (std::size_t i = 0; i < n; ++i) {
    turned[i] = i < half ? -y[i + half] : y[i - half];
    row.value[i] = y[i] * cosines[i] + turned[i] * sines[i];
    row.magnitude[i] = std::abs(y[i] * cosines[i]) + std::abs(turned[i] * sines[i]);
  }
  return row;
}

template <class T>
struct Call {
  Call(KvCacheMode mode_in, std::int64_t heads_in, std::int64_t norm_in, std::int64_t rope_in, std::int64_t v_in)
      : mode(mode_in),
        heads(heads_in),
        norm_len(norm_in),
        rope_dim(rope_in),
        v_dim(v_in),
        kv_len(v_dim ? norm_len : norm_len + rope_dim),
        k_dim(v_dim ? norm_len : rope_dim),
        c_dim(v_dim ? v_dim : norm_len),
        kv(std::size_t(kBatch * heads * kSeq * kv_len)),
        v(std::size_t(kBatch * heads * kSeq * v_dim)),
        gamma{std::size_t(norm_len)},
        cosines{std::size_t(kSeq * rope_dim)},
        sines{std::size_t(kSeq * rope_dim)} {
    test::Random random(6);
    test::fill_normal(kv, random);
    test::fill_normal(v, random);
    test::fill_normal(gamma, random);
    test::fill_normal(cosines, random);  // any factors, not only those of an angle
    test::fill_normal(sines, random);
    const bool by_run = mode == KvCacheMode::pa_blk || mode == KvCacheMode::pa_blk_nz;
    if (mode == KvCacheMode::norm) {
      index = {0, 4, -1, 5, 2, 1, 0, 3, 5, 4};
    } else if (by_run) {
      index = {6, 1, -1, 9};  // runs of 3 and 2 tokens; a place inside a page names the page
    } else {
      index = {11, 0, 5, -1, 7, 3, 2, 1, 9, 10};
    }
  }
  std::int64_t pages() const { return mode == KvCacheMode::norm ? kBatch : kPages; }
  std::int64_t page_size() const { return mode == KvCacheMode::norm ? 6 : kPageSize; }
  bool nz() const { return mode == KvCacheMode::pa_nz || mode == KvCacheMode::pa_blk_nz; }

  // As the mode's definition reads.
  std::int64_t page_and_row(std::int64_t b, std::int64_t t, std::int64_t& row) const {
    if (mode == KvCacheMode::norm) {
      row = index[std::size_t(b * kSeq + t)];
      return row < 0 ? -1 : b;
    }
    const bool by_run = mode == KvCacheMode::pa_blk || mode == KvCacheMode::pa_blk_nz;
    const std::int64_t place = index[std::size_t(by_run ? b * 2 + t / kPageSize : b * kSeq + t)];
    row = by_run ? t % kPageSize : place % kPageSize;
    return place < 0 ? -1 : place / kPageSize;
  }
  template <class C>
  std::int64_t at(std::int64_t page, std::int64_t row, std::int64_t head, std::int64_t dim, std::int64_t i) const {
    if (!nz()) return ((page * heads + head) * page_size() + row) * dim + i;
    const std::int64_t e = 32 / std::int64_t(sizeof(C));
    return ((page * (heads * dim / e) + (head * dim + i) / e) * page_size() + row) * e + i % e;
  }
  template <class C>
  TensorView cache_view(GuardedBuffer<C>& cache, std::int64_t dim) const {
    const std::int64_t e = 32 / std::int64_t(sizeof(C));
    if (nz()) return {cache.data(), kCacheType<C>, {pages(), heads * dim / e, page_size(), e}};
    return {cache.data(), kCacheType<C>, {pages(), heads, page_size(), dim}};
  }
  ConstTensorView index_view() const {
    if (mode == KvCacheMode::norm) return {index.data(), DType::i64, {kBatch, kSeq}};
    return {index.data(), DType::i64, {std::int64_t(index.size())}};
  }

  Expected expected(std::int64_t b, std::int64_t head, std::int64_t t) const {
    const std::int64_t row = (b * heads + head) * kSeq + t;
    const Row whole = as_row(kv.data() + row * kv_len, kv_len);
    const std::vector<double> gains(gamma.begin(), gamma.end());
    Expected out;
    out.c.value = reference::rms_norm({whole.value.begin(), whole.value.begin() + norm_len}, gains, 1e-5);
    const float *c = cosines.data() + t * rope_dim, *s = sines.data() + t * rope_dim;
    if (v_dim) {
      out.k = rotated({out.c.value.begin(), out.c.value.begin() + rope_dim}, c, s);
      for (std::int64_t i = rope_dim; i < norm_len; ++i) {
        out.k.value.push_back(out.c.value[std::size_t(i)]);
        out.k.magnitude.push_back(std::abs(out.k.value.back()));
      }
      out.c = as_row(v.data() + row * v_dim, v_dim);
    } else {
      out.k = rotated({whole.value.begin() + norm_len, whole.value.end()}, c, s);
      for (double value : out.c.value) out.c.magnitude.push_back(std::abs(value));
    }
    return out;
  }

  KvCacheMode mode;
  std::int64_t heads, norm_len, rope_dim, v_dim, kv_len, k_dim, c_dim;
  GuardedBuffer<T> kv, v;
  mutable GuardedBuffer<float> gamma, cosines, sines;
  std::vector<std::int64_t> index;
};

template <class T, class C>
void check(Isa isa, KvCacheMode mode, std::int64_t heads, std::int64_t norm_len, std::int64_t rope_dim,
           std::int64_t v_dim) {
  SCOPED_TRACE(testing::Message() << isa_name(isa) << " mode " << int(mode) << " heads " << heads << " norm "
                                  << norm_len << " rope " << rope_dim << " v " << v_dim << " cache "
                                  << dtype_name(kCacheType<C>));
  constexpr bool kCodes = std::is_same_v<C, std::int8_t>;
  Context context({.num_threads = 2, .isa = isa});
  Call<T> call(mode, heads, norm_len, rope_dim, v_dim);
  const auto cache_size = [&](std::int64_t dim) { return std::size_t(call.pages() * heads * call.page_size() * dim); };
  GuardedBuffer<C> k_cache(cache_size(call.k_dim)), c_cache(cache_size(call.c_dim));
  std::memset(static_cast<void*>(k_cache.data()), 0x2a, k_cache.size() * sizeof(C));
  std::memset(static_cast<void*>(c_cache.data()), 0x2a, c_cache.size() * sizeof(C));
  GuardedBuffer<T> k_out(std::size_t(kBatch * heads * kSeq * call.k_dim)),
      c_out(std::size_t(kBatch * heads * kSeq * call.c_dim));
  GuardedBuffer<float> k_scale{std::size_t(call.k_dim)}, c_offset{std::size_t(call.c_dim)};
  for (std::size_t i = 0; i < k_scale.size(); ++i) k_scale[i] = 20.0f + float(i % 7);
  for (std::size_t i = 0; i < c_offset.size(); ++i) c_offset[i] = float(i % 5) - 2.25f;
  KvRmsNormRopeCacheOptions options{.mode = mode};
  if (v_dim) options.v = ConstTensorView(call.v.data(), kDType<T>, {kBatch, heads, kSeq, v_dim});
  if (kCodes) {
    options.k_scale = ConstTensorView(k_scale.data(), DType::f32, {call.k_dim});
    options.c_offset = ConstTensorView(c_offset.data(), DType::f32, {call.c_dim});
  }
  options.k_out = TensorView(k_out.data(), kDType<T>, {kBatch, heads, kSeq, call.k_dim});
  options.c_out = TensorView(c_out.data(), kDType<T>, {kBatch, heads, kSeq, call.c_dim});
  kv_rms_norm_rope_cache(context, {call.kv.data(), kDType<T>, {kBatch, heads, kSeq, call.kv_len}},
                         {call.gamma.data(), DType::f32, {norm_len}},
                         {call.cosines.data(), DType::f32, {1, kSeq, rope_dim}},
                         {call.sines.data(), DType::f32, {1, kSeq, rope_dim}}, call.index_view(),
                         call.cache_view(k_cache, call.k_dim), call.cache_view(c_cache, call.c_dim), options);
  std::vector<char> k_written(k_cache.size()), c_written(c_cache.size());
  const auto check_row = [&](const Row& row, const GuardedBuffer<C>& cache, std::vector<char>& written,
                             const GuardedBuffer<T>& out, std::int64_t out_row, std::int64_t page, std::int64_t in_page,
                             std::int64_t head, const float* scale, const float* offset) {
    const auto dim = std::int64_t(row.value.size());
    for (std::int64_t i = 0; i < dim; ++i) {
      const double value = row.value[std::size_t(i)], size = row.magnitude[std::size_t(i)];
      ASSERT_NEAR(to_float(out[std::size_t(out_row * dim + i)]), value,
                  test::tolerance(double(norm_len), size, value, kDType<T>));
      if (page < 0) continue;
      const auto at = std::size_t(call.template at<C>(page, in_page, head, dim, i));
      written[at] = 1;
      if constexpr (kCodes) {
        const double exact = std::clamp(value * (scale ? scale[i] : 1.0f) + (offset ? offset[i] : 0.0f), -128.0, 127.0);
        ASSERT_NEAR(double(cache[at]), exact, 0.5 + 1e-3);
      } else {
        ASSERT_NEAR(to_float(cache[at]), value, test::tolerance(double(norm_len), size, value, kCacheType<C>));
      }
    }
  };
  for (std::int64_t b = 0; b < kBatch; ++b) {
    for (std::int64_t head = 0; head < heads; ++head) {
      for (std::int64_t t = 0; t < kSeq; ++t) {
        const Expected expected = call.expected(b, head, t);
        std::int64_t in_page = 0;
        const std::int64_t page = call.page_and_row(b, t, in_page), row = (b * heads + head) * kSeq + t;
        check_row(expected.k, k_cache, k_written, k_out, row, page, in_page, head, k_scale.data(), nullptr);
        check_row(expected.c, c_cache, c_written, c_out, row, page, in_page, head, nullptr, c_offset.data());
      }
    }
  }
  C untouched;
  std::memset(static_cast<void*>(&untouched), 0x2a, sizeof untouched);
  for (std::size_t i = 0; i < k_cache.size(); ++i) {
    ASSERT_TRUE(k_written[i] || std::memcmp(&k_cache[i], &untouched, sizeof(C)) == 0) << "k " << i;
  }
  for (std::size_t i = 0; i < c_cache.size(); ++i) {
    ASSERT_TRUE(c_written[i] || std::memcmp(&c_cache[i], &untouched, sizeof(C)) == 0) << "c " << i;
  }
}

template <class T>
class KvRmsNormRopeCache : public testing::Test {};
using Types = testing::Types<float, BFloat16, Float16>;
TYPED_TEST_SUITE(KvRmsNormRopeCache, Types);

TYPED_TEST(KvRmsNormRopeCache, MatchesReferenceAtEveryLevel) {
  using T = TypeParam;
  for (Isa isa : supported_isas()) {
    if (!kv_rms_norm_rope_tokens.row(isa)) continue;
    for (KvCacheMode mode :
         {KvCacheMode::norm, KvCacheMode::pa, KvCacheMode::pa_nz, KvCacheMode::pa_blk, KvCacheMode::pa_blk_nz}) {
      check<T, T>(isa, mode, 1, 512, 64, 0);
      check<T, std::int8_t>(isa, mode, 2, 96, 32, 0);
      check<T, T>(isa, mode, 1, 192, 64, 128);
      check<T, std::int8_t>(isa, mode, 1, 64, 64, 160);
    }
    check<T, T>(isa, KvCacheMode::pa, 3, 33, 6, 0);
    check<T, std::int8_t>(isa, KvCacheMode::norm, 1, 7, 2, 5);
  }
}

TEST(KvRmsNormRopeCacheErrors, NameTheArgumentAndWriteNothing) {
  Context context({.num_threads = 1});
  Call<float> call(KvCacheMode::pa, 1, 16, 8, 0);
  GuardedBuffer<float> k(std::size_t(kPages * kPageSize * 8)), c(std::size_t(kPages * kPageSize * 16));
  const auto message = [&](const KvRmsNormRopeCacheOptions& options, const ConstTensorView& index,
                           const TensorView& k_cache) {
    return message_of([&] {
      kv_rms_norm_rope_cache(context, {call.kv.data(), DType::f32, {kBatch, 1, kSeq, 24}},
                             {call.gamma.data(), DType::f32, {16}}, {call.cosines.data(), DType::f32, {1, kSeq, 8}},
                             {call.sines.data(), DType::f32, {1, kSeq, 8}}, index, k_cache,
                             {c.data(), DType::f32, {kPages, 1, kPageSize, 16}}, options);
    });
  };
  const TensorView k_cache(k.data(), DType::f32, {kPages, 1, kPageSize, 8});
  call.index[4] = 12;
  EXPECT_EQ(message({.mode = KvCacheMode::pa}, call.index_view(), k_cache),
            "kv_rms_norm_rope_cache: index[4] is 12, must be -1 or from 0 to 11");
  call.index[4] = -2;
  EXPECT_NE(message({.mode = KvCacheMode::pa}, call.index_view(), k_cache).find("index[4] is -2"), std::string::npos);
  call.index[4] = 7;
  EXPECT_NE(message({.mode = KvCacheMode::norm}, call.index_view(), k_cache), "");
  EXPECT_NE(message({.mode = KvCacheMode::pa}, call.index_view(), {k.data(), DType::f32, {kPages, 1, 2, 8}})
                .find("c_cache has 4 pages of 3"),
            std::string::npos);
  EXPECT_NE(message({.mode = KvCacheMode::pa, .k_scale = ConstTensorView(call.gamma.data(), DType::f32, {8})},
                    call.index_view(), k_cache)
                .find("k_scale is given"),
            std::string::npos);
  EXPECT_NE(message({.mode = KvCacheMode::pa, .eps = 2.0f}, call.index_view(), k_cache).find("eps is 2"),
            std::string::npos);
  for (float value : k) EXPECT_TRUE(std::isnan(value));
  EXPECT_EQ(message({.mode = KvCacheMode::pa}, call.index_view(), k_cache), "");
}

}  // namespace
}  // namespace ops_transformer
