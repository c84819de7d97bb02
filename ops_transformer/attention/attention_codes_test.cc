// SPDX-License-Identifier: Apache-2.0
// int8 keys and values under every kind of scale, and bf16 ones under f32 queries.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "ops_transformer/attention/attention_kernel.h"
#include "ops_transformer/attention/flash_attention.h"
#include "ops_transformer/attention/flash_attention_reference.h"
#include "tests/support/dtype_of.h"
#include "tests/support/guarded_buffer.h"
#include "tests/support/message_of.h"
#include "tests/support/random.h"
#include "tests/support/tolerance.h"

namespace ops_transformer {
namespace {

using test::GuardedBuffer;

enum class Kind { tensor, channel, token };

// Scales (and offsets) of a cache [batch, heads, len, dim] as floats, in the shape that says their kind.
class Scales {
 public:
  Scales(Kind kind, std::int64_t batch, std::int64_t heads, std::int64_t len, std::int64_t dim, bool offsets,
         std::uint64_t seed)
      : sizes_{kind == Kind::token ? batch : 1, kind == Kind::tensor ? 1 : heads, kind == Kind::token ? len : 1,
               kind == Kind::channel ? dim : 1},
        scales_(std::size_t(sizes_[0] * sizes_[1] * sizes_[2] * sizes_[3])),
        offsets_(offsets ? scales_.size() : 0) {
    test::Random random(seed);
    for (float& x : scales_) x = 0.005f + 0.02f * std::abs(random.normal(1));
    for (float& x : offsets_) x = random.normal(10);
  }
  std::size_t at(std::int64_t b, std::int64_t h, std::int64_t j, std::int64_t d) const {
    const std::int64_t index[4] = {b, h, j, d};
    std::int64_t at = 0;
    for (int i = 0; i < 4; ++i) at = at * sizes_[i] + (sizes_[i] == 1 ? 0 : index[i]);
    return std::size_t(at);
  }
  double scale(std::int64_t b, std::int64_t h, std::int64_t j, std::int64_t d) const {
    return double(scales_[at(b, h, j, d)]);
  }
  double offset(std::int64_t b, std::int64_t h, std::int64_t j, std::int64_t d) const {
    return offsets_.size() == 0 ? 0.0 : double(offsets_[at(b, h, j, d)]);
  }
  void break_token(std::int64_t b, std::int64_t h, std::int64_t j) {
    scales_[at(b, h, j, 0)] = std::numeric_limits<float>::quiet_NaN();
  }
  ConstTensorView scales() const { return {scales_.data(), DType::f32, sizes_}; }
  std::optional<ConstTensorView> offsets() const {
    if (offsets_.size() == 0) return {};
    return ConstTensorView(offsets_.data(), DType::f32, sizes_);
  }

 private:
  std::vector<std::int64_t> sizes_;
  GuardedBuffer<float> scales_, offsets_;
};

struct Shape {
  std::int64_t batch, num_q_heads, num_kv_heads, q_len, kv_len, head_dim, value_dim;
  Kind k, v;
  bool offsets;
};
constexpr Shape kShapes[] = {
    {1, 1, 1, 1, 1, 1, 1, Kind::tensor, Kind::tensor, false},
    {2, 4, 2, 1, 131, 33, 40, Kind::token, Kind::token, true},
    {1, 4, 1, 1, 700, 64, 64, Kind::channel, Kind::token, true},
    {1, 9, 3, 1, 300, 80, 128, Kind::token, Kind::channel, true},
    {2, 2, 2, 1, 65, 128, 17, Kind::channel, Kind::channel, false},
    {2, 6, 2, 70, 145, 33, 20, Kind::token, Kind::token, true},
    {1, 3, 1, 40, 300, 64, 64, Kind::channel, Kind::channel, true},
    {1, 2, 2, 7, 19, 16, 768, Kind::token, Kind::channel, false},
};

template <class T>
class Codes : public testing::Test {};
using Types = testing::Types<float, BFloat16, Float16>;
TYPED_TEST_SUITE(Codes, Types);

// One problem, through the contiguous face or with keys in pages.
template <class T>
void expect_matches(const Shape& s, bool paged, bool masked) {
  test::Random random(7);
  GuardedBuffer<T> q(std::size_t(s.batch * s.num_q_heads * s.q_len * s.head_dim));
  GuardedBuffer<std::int8_t> k(std::size_t(s.batch * s.num_kv_heads * s.kv_len * s.head_dim)),
      v(std::size_t(s.batch * s.num_kv_heads * s.kv_len * s.value_dim));
  test::fill_normal(q, random);
  for (auto* codes : {&k, &v}) {
    for (std::int8_t& code : *codes) code = std::int8_t(random.integer(-128, 127));
  }
  Scales k_scales(s.k, s.batch, s.num_kv_heads, s.kv_len, s.head_dim, s.offsets, 1);
  Scales v_scales(s.v, s.batch, s.num_kv_heads, s.kv_len, s.value_dim, s.offsets, 2);
  // Every third key is hidden, and nothing of it may be read into the result.
  GuardedBuffer<std::uint8_t> visible(std::size_t(s.kv_len));
  for (std::int64_t j = 0; j < s.kv_len; ++j) {
    visible[std::size_t(j)] = !masked || j % 3 != 1;
    for (std::int64_t b = 0; b < s.batch && visible[std::size_t(j)] == 0; ++b) {
      for (std::int64_t h = 0; h < s.num_kv_heads; ++h) {
        if (s.k == Kind::token) k_scales.break_token(b, h, j);
        if (s.v == Kind::token) v_scales.break_token(b, h, j);
      }
    }
  }
  FlashAttentionOptions options{.mask = Mask::causal,
                                .k_scales = k_scales.scales(),
                                .k_offsets = k_scales.offsets(),
                                .v_scales = v_scales.scales(),
                                .v_offsets = v_scales.offsets()};
  if (masked) options.visible = ConstTensorView(visible.data(), DType::boolean, {1, s.kv_len});
  const double scale = 1 / std::sqrt(double(s.head_dim));
  std::vector<reference::AttentionRow> rows;
  for (std::int64_t b = 0; b < s.batch; ++b) {
    for (std::int64_t h = 0; h < s.num_q_heads; ++h) {
      const std::int64_t kv_head = h / (s.num_q_heads / s.num_kv_heads);
      // (code + offset) * scale; for bounds the sum of both parts' sizes, since their sum may cancel late.
      const auto key = [&](std::int64_t j, std::int64_t d, bool sizes) {
        const double code = k[std::size_t(((b * s.num_kv_heads + kv_head) * s.kv_len + j) * s.head_dim + d)];
        const double offset = k_scales.offset(b, kv_head, j, d), unit = k_scales.scale(b, kv_head, j, d);
        return (sizes ? std::abs(code) + std::abs(offset) : code + offset) * unit;
      };
      const auto value = [&](std::int64_t j, std::int64_t d, bool sizes) {
        const double code = v[std::size_t(((b * s.num_kv_heads + kv_head) * s.kv_len + j) * s.value_dim + d)];
        const double offset = v_scales.offset(b, kv_head, j, d), unit = v_scales.scale(b, kv_head, j, d);
        return (sizes ? std::abs(code) + std::abs(offset) : code + offset) * unit;
      };
      for (std::int64_t i = 0; i < s.q_len; ++i) {
        std::vector<double> query;
        for (std::int64_t d = 0; d < s.head_dim; ++d) {
          query.push_back(double(to_float(q[std::size_t(((b * s.num_q_heads + h) * s.q_len + i) * s.head_dim + d)])));
        }
        const reference::Rule rule = [&](std::int64_t j, double dot, double) -> reference::RuledScore {
          if (!visible[std::size_t(j)]) return {-std::numeric_limits<double>::infinity(), 0};
          double size = 0;
          for (std::int64_t d = 0; d < s.head_dim; ++d) size += std::abs(query[std::size_t(d)]) * key(j, d, true);
          return {dot * scale, size * scale};
        };
        const auto seen = reference::visible_keys(i, s.q_len, s.kv_len, s.kv_len, 0);
        const auto exact_key = [&](std::int64_t j, std::int64_t d) { return key(j, d, false); };
        auto row = reference::attention_row(
            query, exact_key, [&](std::int64_t j, std::int64_t d) { return value(j, d, false); }, s.value_dim, seen,
            scale, rule);
        row.magnitude = reference::attention_row(
                            query, exact_key, [&](std::int64_t j, std::int64_t d) { return value(j, d, true); },
                            s.value_dim, seen, scale, rule)
                            .out;
        rows.push_back(row);
      }
    }
  }
  for (Isa isa : supported_isas()) {
    if (!flash_tiles.row(isa)) continue;
    for (bool deterministic : {false, true}) {
      SCOPED_TRACE(testing::Message() << isa_name(isa) << " L" << s.q_len << ":" << s.kv_len << " D" << s.head_dim
                                      << ":" << s.value_dim << " paged " << paged << " masked " << masked
                                      << " deterministic " << deterministic);
      Context context({.num_threads = 2, .deterministic = deterministic, .isa = isa});
      GuardedBuffer<T> out(std::size_t(s.batch * s.num_q_heads * s.q_len * s.value_dim));
      const DType dtype = test::kDType<T>;
      if (paged) {
        // The batch is the pages: sequence b is page b.
        std::vector<std::int32_t> table(static_cast<std::size_t>(s.batch));
        std::iota(table.begin(), table.end(), 0);
        PagedKvView view{{k.data(), DType::s8, {s.batch, s.num_kv_heads, s.kv_len, s.head_dim}},
                         {v.data(), DType::s8, {s.batch, s.num_kv_heads, s.kv_len, s.value_dim}},
                         {}};
        std::vector<std::int64_t> offsets = {0};
        for (std::int64_t b = 0; b < s.batch; ++b) {
          view.sequences.push_back({&table[std::size_t(b)], 1, s.kv_len});
          offsets.push_back(offsets.back() + s.q_len);
        }
        // q and out are [batch, heads, len, dim] in memory: a call for each sequence's rows.
        for (std::int64_t b = 0; b < s.batch; ++b) {
          PagedKvView one{view.k, view.v, {view.sequences[std::size_t(b)]}};
          const std::int64_t q_at = b * s.num_q_heads * s.q_len * s.head_dim,
                             out_at = b * s.num_q_heads * s.q_len * s.value_dim;
          const std::int64_t ends[2] = {0, s.q_len};
          flash_attention_paged(
              context,
              {q.data() + q_at, dtype, {s.q_len, s.num_q_heads, s.head_dim}, {s.head_dim, s.q_len * s.head_dim, 1}},
              one,
              {out.data() + out_at,
               dtype,
               {s.q_len, s.num_q_heads, s.value_dim},
               {s.value_dim, s.q_len * s.value_dim, 1}},
              ends, options);
        }
      } else {
        flash_attention(context, {q.data(), dtype, {s.batch, s.num_q_heads, s.q_len, s.head_dim}},
                        {k.data(), DType::s8, {s.batch, s.num_kv_heads, s.kv_len, s.head_dim}},
                        {v.data(), DType::s8, {s.batch, s.num_kv_heads, s.kv_len, s.value_dim}},
                        {out.data(), dtype, {s.batch, s.num_q_heads, s.q_len, s.value_dim}}, options);
      }
      for (std::size_t r = 0; r < rows.size(); ++r) {
        const reference::AttentionRow& row = rows[r];
        const double score_error = test::tolerance(double(s.head_dim) + 2, row.score_magnitude, 0, DType::f32);
        for (std::size_t d = 0; d < std::size_t(s.value_dim); ++d) {
          const double bound = 2 * score_error * row.magnitude[d] +
                               test::tolerance(double(row.num_keys) + 2, row.magnitude[d], row.out[d], dtype);
          ASSERT_NEAR(to_float(out[r * std::size_t(s.value_dim) + d]), row.out[d], bound) << "row " << r << " d " << d;
        }
      }
    }
  }
}

TYPED_TEST(Codes, MatchFloat64) {
  for (const Shape& shape : kShapes) expect_matches<TypeParam>(shape, false, false);
}
TYPED_TEST(Codes, HiddenKeysMayHaveAnyScale) {
  for (const Shape& shape : kShapes) expect_matches<TypeParam>(shape, false, true);
}
TYPED_TEST(Codes, MatchFloat64InPages) {
  for (const Shape& shape : kShapes) expect_matches<TypeParam>(shape, true, true);
}

// Packed sequences start at their own rows of the scales; pages of 4 keys lie anywhere.
TEST(CodesOfSequences, PackedAndPagedEqualContiguous) {
  constexpr std::int64_t kLens[] = {9, 0, 22}, kTotal = 31, kHeads = 2, kDim = 24;
  test::Random random(3);
  std::vector<float> q(3 * kHeads * kDim), scales(kTotal * kHeads);
  std::vector<std::int8_t> k(kTotal * kHeads * kDim), v(k.size());
  test::fill_normal(q, random);
  for (float& x : scales) x = 0.01f + 0.01f * std::abs(random.normal(1));
  for (auto* codes : {&k, &v}) {
    for (std::int8_t& code : *codes) code = std::int8_t(random.integer(-127, 127));
  }
  constexpr std::int64_t kPage = 4, kPages = 12;
  std::vector<std::int8_t> k_pages(kPages * kHeads * kPage * kDim), v_pages(k_pages.size());
  std::vector<float> page_scales(kPages * kHeads * kPage);
  const std::int32_t tables[3][6] = {{7, 2, 5}, {}, {0, 11, 3, 9, 4, 1}};
  for (std::int64_t b = 0, first = 0; b < 3; first += kLens[b++]) {
    for (std::int64_t j = 0; j < kLens[b]; ++j) {
      for (std::int64_t h = 0; h < kHeads; ++h) {
        const std::int64_t row = (tables[b][j / kPage] * kHeads + h) * kPage + j % kPage;
        page_scales[std::size_t(row)] = scales[std::size_t((first + j) * kHeads + h)];
        for (std::int64_t d = 0; d < kDim; ++d) {
          k_pages[std::size_t(row * kDim + d)] = k[std::size_t(((first + j) * kHeads + h) * kDim + d)];
          v_pages[std::size_t(row * kDim + d)] = v[std::size_t(((first + j) * kHeads + h) * kDim + d)];
        }
      }
    }
  }
  for (Isa isa : supported_isas()) {
    if (!flash_decode.row(isa)) continue;
    Context context({.num_threads = 1, .isa = isa});
    const std::int64_t q_offsets[] = {0, 1, 2, 3}, kv_offsets[] = {0, 9, 9, 31};
    const ConstTensorView q_view(q.data(), DType::f32, {3, kHeads, kDim});
    const ConstTensorView packed_scales(scales.data(), DType::f32, {kTotal, kHeads, 1});
    std::vector<float> packed(q.size(), NAN), paged(q.size(), NAN);
    flash_attention_varlen(context, q_view, {k.data(), DType::s8, {kTotal, kHeads, kDim}},
                           {v.data(), DType::s8, {kTotal, kHeads, kDim}},
                           {packed.data(), DType::f32, {3, kHeads, kDim}}, q_offsets, kv_offsets,
                           {.k_scales = packed_scales, .v_scales = packed_scales});
    const ConstTensorView in_pages(page_scales.data(), DType::f32, {kPages, kHeads, kPage, 1});
    PagedKvView view{{k_pages.data(), DType::s8, {kPages, kHeads, kPage, kDim}},
                     {v_pages.data(), DType::s8, {kPages, kHeads, kPage, kDim}},
                     {{tables[0], 3, 9}, {tables[1], 0, 0}, {tables[2], 6, 22}}};
    flash_attention_paged(context, q_view, view, {paged.data(), DType::f32, {3, kHeads, kDim}}, q_offsets,
                          {.k_scales = in_pages, .v_scales = in_pages});
    EXPECT_EQ(packed, paged);
    for (std::int64_t b = 0; b < 3; ++b) {
      const std::int64_t first = kv_offsets[b], len = kLens[b];
      std::vector<float> alone(kHeads * kDim, NAN);
      const ConstTensorView own(scales.data() + first * kHeads, DType::f32, {1, kHeads, len, 1}, {0, 1, kHeads, 1});
      const std::vector<std::int64_t> sizes = {1, kHeads, len, kDim}, strides = {0, kDim, kHeads * kDim, 1};
      flash_attention(context, {q.data() + b * kHeads * kDim, DType::f32, {1, kHeads, 1, kDim}},
                      {k.data() + first * kHeads * kDim, DType::s8, sizes, strides},
                      {v.data() + first * kHeads * kDim, DType::s8, sizes, strides},
                      {alone.data(), DType::f32, {1, kHeads, 1, kDim}}, {.k_scales = own, .v_scales = own});
      EXPECT_EQ(alone,
                std::vector<float>(packed.begin() + b * kHeads * kDim, packed.begin() + (b + 1) * kHeads * kDim));
    }
  }
}

// One zero token, one with an outlier; the cache's codes are what a user's own quantisation gives.
TEST(CodesOfSequences, QuantisedCacheStaysNearFloat) {
  constexpr std::int64_t kLen = 1024, kDim = 64;
  test::Random random(9);
  std::vector<float> q(kDim), k(kLen * kDim), v(k.size());
  test::fill_normal(q, random);
  test::fill_normal(k, random);
  test::fill_normal(v, random);
  for (std::int64_t d = 0; d < kDim; ++d) v[std::size_t(3 * kDim + d)] = 0;
  std::vector<std::int8_t> k_codes(k.size()), v_codes(v.size());
  std::vector<float> k_scales(kLen), v_scales(kLen);
  const auto quantise = [&](const std::vector<float>& x, std::vector<std::int8_t>& codes, std::vector<float>& scales) {
    for (std::size_t j = 0; j < kLen; ++j) {
      float most = 0;
      for (std::size_t d = 0; d < kDim; ++d) most = std::max(most, std::abs(x[j * kDim + d]));
      scales[j] = most / 127;
      for (std::size_t d = 0; d < kDim; ++d) {
        codes[j * kDim + d] = std::int8_t(most == 0 ? 0 : std::nearbyint(x[j * kDim + d] / scales[j]));
      }
    }
  };
  quantise(k, k_codes, k_scales);
  quantise(v, v_codes, v_scales);
  Context context({.num_threads = 1});
  std::vector<float> exact(kDim), out(kDim);
  const ConstTensorView q_view(q.data(), DType::f32, {1, 1, 1, kDim});
  flash_attention(context, q_view, {k.data(), DType::f32, {1, 1, kLen, kDim}},
                  {v.data(), DType::f32, {1, 1, kLen, kDim}}, {exact.data(), DType::f32, {1, 1, 1, kDim}});
  flash_attention(context, q_view, {k_codes.data(), DType::s8, {1, 1, kLen, kDim}},
                  {v_codes.data(), DType::s8, {1, 1, kLen, kDim}}, {out.data(), DType::f32, {1, 1, 1, kDim}},
                  {.k_scales = ConstTensorView(k_scales.data(), DType::f32, {kLen, 1}),
                   .v_scales = ConstTensorView(v_scales.data(), DType::f32, {kLen, 1})});
  for (std::size_t d = 0; d < kDim; ++d) EXPECT_NEAR(out[d], exact[d], 2e-2);
}

TEST(CodesOfSequences, ErrorsNameTheScales) {
  Context context({.num_threads = 1});
  std::vector<float> x(64);
  std::vector<std::int8_t> codes(64);
  const auto message = [&](DType dtype, const FlashAttentionOptions& options) {
    const void* keys = dtype == DType::s8 ? static_cast<const void*>(codes.data()) : x.data();
    const ConstTensorView k(keys, dtype, {1, 2, 4, 3});
    std::vector<float> out(6);
    return test::message_of([&] {
      flash_attention(context, {x.data(), DType::f32, {1, 2, 1, 3}}, k, k, {out.data(), DType::f32, {1, 2, 1, 3}},
                      options);
    });
  };
  const auto grid = [&](std::vector<std::int64_t> sizes) { return ConstTensorView(x.data(), DType::f32, sizes); };
  const auto has = [](const std::string& text, const char* part) { return text.find(part) != std::string::npos; };
  EXPECT_TRUE(has(message(DType::s8, {}), "k is s8 and needs k_scales"));
  EXPECT_TRUE(has(message(DType::s8, {.k_scales = grid({1})}), "v is s8 and needs v_scales"));
  EXPECT_TRUE(has(message(DType::f32, {.k_scales = grid({1})}), "k_scales is given, which only s8 has: k is f32"));
  EXPECT_TRUE(has(message(DType::s8, {.k_scales = grid({4, 3}), .v_scales = grid({1})}), "by token and by channel"));
  EXPECT_TRUE(has(message(DType::s8, {.k_scales = grid({3, 1}), .v_scales = grid({1})}), "must broadcast to k"));
  EXPECT_TRUE(has(message(DType::s8, {.k_scales = grid({3}), .k_offsets = grid({4, 1}), .v_scales = grid({1})}),
                  "by token and by channel"));
  EXPECT_EQ(message(DType::s8, {.k_scales = grid({2, 4, 1}), .v_scales = grid({2, 1, 3})}), "");
}

// f32 queries over bf16 keys are rounded to bf16, whatever holds the keys.
TEST(MixedDtypes, Bf16KeysUnderF32QueriesEqualBf16Queries) {
  for (Isa isa : supported_isas()) {
    if (!flash_tiles.row(isa)) continue;
    Context context({.num_threads = 1, .isa = isa});
    for (std::int64_t q_len : {1, 9}) {
      constexpr std::int64_t kHeads = 2, kLen = 70, kDim = 40;
      test::Random random(5);
      std::vector<float> q(std::size_t(kHeads * q_len * kDim)), out(q.size()), expected(q.size());
      std::vector<BFloat16> rounded(q.size()), k(kHeads * kLen * kDim), v(k.size());
      test::fill_normal(q, random);
      test::fill_normal(k, random);
      test::fill_normal(v, random);
      for (std::size_t i = 0; i < q.size(); ++i) rounded[i] = to_bfloat16(q[i]);
      const ConstTensorView k_view(k.data(), DType::bf16, {1, kHeads, kLen, kDim}),
          v_view(v.data(), DType::bf16, {1, kHeads, kLen, kDim});
      flash_attention(context, {q.data(), DType::f32, {1, kHeads, q_len, kDim}}, k_view, v_view,
                      {out.data(), DType::f32, {1, kHeads, q_len, kDim}});
      flash_attention(context, {rounded.data(), DType::bf16, {1, kHeads, q_len, kDim}}, k_view, v_view,
                      {expected.data(), DType::f32, {1, kHeads, q_len, kDim}});
      EXPECT_EQ(out, expected) << isa_name(isa);
    }
  }
}

}  // namespace
}  // namespace ops_transformer
