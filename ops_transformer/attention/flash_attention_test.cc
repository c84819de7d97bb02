// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/attention/flash_attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <vector>

#include "ops_transformer/attention/attention_kernel.h"
#include "ops_transformer/attention/flash_attention_reference.h"
#include "tests/support/dtype_of.h"
#include "tests/support/guarded_buffer.h"
#include "tests/support/random.h"
#include "tests/support/tolerance.h"

namespace ops_transformer {
namespace {

using test::GuardedBuffer;
using test::kDType;

struct Shape {
  std::int64_t batch = 1, num_q_heads = 1, num_kv_heads = 1, q_len = 1, kv_len = 1, head_dim = 64, value_dim = 64;
  FlashAttentionOptions options{};
  bool token_major = false;    // [batch, len, heads, dim] in memory
  bool expanded_keys = false;  // all heads share one, by stride 0
  float q_size = 1.0f;
};

std::vector<std::int64_t> strides_of(std::int64_t heads, std::int64_t len, std::int64_t dim, bool token_major) {
  return token_major ? std::vector<std::int64_t>{len * heads * dim, dim, heads * dim, 1}
                     : std::vector<std::int64_t>{heads * len * dim, len * dim, dim, 1};
}

// Inputs of a shape, and every row of the result in float64 with its bounds.
template <class T>
class Problem {
 public:
  explicit Problem(const Shape& shape)
      : s_(shape),
        stored_heads_(shape.expanded_keys ? 1 : shape.num_kv_heads),
        q_(std::size_t(shape.batch * shape.num_q_heads * shape.q_len * shape.head_dim)),
        k_(std::size_t(shape.batch * stored_heads_ * shape.kv_len * shape.head_dim)),
        v_(std::size_t(shape.batch * stored_heads_ * shape.kv_len * shape.value_dim)) {
    test::Random random(11);
    test::fill_normal(q_, random, shape.q_size);
    test::fill_normal(k_, random);
    test::fill_normal(v_, random);
    compute_rows();
  }

  void expect_matches(Context& context) const {
    SCOPED_TRACE(testing::Message() << isa_name(context.isa()) << " threads " << context.num_threads() << " B"
                                    << s_.batch << " H" << s_.num_q_heads << ":" << s_.num_kv_heads << " L" << s_.q_len
                                    << ":" << s_.kv_len << " D" << s_.head_dim << ":" << s_.value_dim << " causal "
                                    << (s_.options.mask == Mask::causal) << " deterministic " << context.deterministic()
                                    << " token_major " << s_.token_major);
    GuardedBuffer<T> out(std::size_t(s_.batch * s_.num_q_heads * s_.q_len * s_.value_dim));
    GuardedBuffer<float> lse(std::size_t(s_.batch * s_.num_q_heads * s_.q_len));
    const TensorView out_view(out.data(), kDType<T>,
                              std::vector<std::int64_t>{s_.batch, s_.num_q_heads, s_.q_len, s_.value_dim},
                              strides_of(s_.num_q_heads, s_.q_len, s_.value_dim, s_.token_major));
    FlashAttentionOptions options = s_.options;
    options.lse = TensorView(lse.data(), DType::f32, {s_.batch, s_.num_q_heads, s_.q_len});
    flash_attention(context, q_view(), k_view(), v_view(), out_view, options);
    const double weight_error = kDType<T> == DType::bf16 ? 2 * test::epsilon(DType::bf16) : 0;
    std::size_t index = 0;
    for (std::int64_t b = 0; b < s_.batch; ++b) {
      for (std::int64_t h = 0; h < s_.num_q_heads; ++h) {
        for (std::int64_t i = 0; i < s_.q_len; ++i, ++index) {
          const reference::AttentionRow& row = rows_[index];
          const double score_error = test::tolerance(double(s_.head_dim), row.score_magnitude, 0, DType::f32);
          const double n = double(row.num_keys);
          for (std::int64_t d = 0; d < s_.value_dim; ++d) {
            const double expected = row.out[std::size_t(d)], magnitude = row.magnitude[std::size_t(d)];
            const double bound =
                (2 * score_error + weight_error) * magnitude + test::tolerance(n, magnitude, expected, kDType<T>);
            ASSERT_NEAR(at(out_view, b, h, i, d), expected, bound)
                << "b " << b << " h " << h << " i " << i << " d " << d;
          }
          if (row.num_keys == 0) {
            ASSERT_TRUE(std::isinf(lse[index]) && lse[index] < 0) << lse[index];
          } else {
            ASSERT_NEAR(lse[index], row.lse, score_error + weight_error + test::tolerance(n, 1, row.lse, DType::f32));
          }
        }
      }
    }
  }

 private:
  ConstTensorView view(const GuardedBuffer<T>& data, std::int64_t heads, std::int64_t len, std::int64_t dim,
                       bool expanded) const {
    auto strides = strides_of(expanded ? 1 : heads, len, dim, s_.token_major);
    if (expanded) strides[1] = 0;
    return ConstTensorView(data.data(), kDType<T>, std::vector<std::int64_t>{s_.batch, heads, len, dim}, strides);
  }
  ConstTensorView q_view() const { return view(q_, s_.num_q_heads, s_.q_len, s_.head_dim, false); }
  ConstTensorView k_view() const { return view(k_, s_.num_kv_heads, s_.kv_len, s_.head_dim, s_.expanded_keys); }
  ConstTensorView v_view() const { return view(v_, s_.num_kv_heads, s_.kv_len, s_.value_dim, s_.expanded_keys); }

  static double at(const ConstTensorView& t, std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t d) {
    return double(to_float(t.as<T>()[b * t.stride(0) + h * t.stride(1) + i * t.stride(2) + d]));
  }

  void compute_rows() {
    const FlashAttentionOptions& o = s_.options;
    const double scale = o.softmax_scale ? double(*o.softmax_scale) : 1 / std::sqrt(double(s_.head_dim));
    const std::int64_t left = o.window == kNoWindow ? o.window_left : o.window - 1;
    const std::int64_t right = o.mask == Mask::causal ? 0 : o.window_right;
    for (std::int64_t b = 0; b < s_.batch; ++b) {
      for (std::int64_t h = 0; h < s_.num_q_heads; ++h) {
        const std::int64_t kv = h / (s_.num_q_heads / s_.num_kv_heads);
        for (std::int64_t i = 0; i < s_.q_len; ++i) {
          std::vector<double> query;
          for (std::int64_t d = 0; d < s_.head_dim; ++d) query.push_back(at(q_view(), b, h, i, d));
          rows_.push_back(reference::attention_row(
              query, [&, k = k_view()](std::int64_t j, std::int64_t d) { return at(k, b, kv, j, d); },
              [&, v = v_view()](std::int64_t j, std::int64_t d) { return at(v, b, kv, j, d); }, s_.value_dim,
              reference::visible_keys(i, s_.q_len, s_.kv_len, left, right), scale));
        }
      }
    }
  }

  Shape s_;
  std::int64_t stored_heads_;
  GuardedBuffer<T> q_, k_, v_;
  std::vector<reference::AttentionRow> rows_;
};

template <class T>
void at_every_level(const Shape& shape, std::initializer_list<int> num_threads = {2}) {
  const Problem<T> problem(shape);
  for (Isa isa : supported_isas()) {
    if (!flash_tiles.row(isa)) continue;
    for (bool deterministic : {false, true}) {
      for (int threads : num_threads) {
        Context context({.num_threads = threads, .deterministic = deterministic, .isa = isa});
        problem.expect_matches(context);
      }
    }
  }
}

template <class T>
class FlashAttention : public testing::Test {};
using Types = testing::Types<float, BFloat16, Float16>;
TYPED_TEST_SUITE(FlashAttention, Types);

// Any head size, also with another value size.
TYPED_TEST(FlashAttention, HeadDims) {
  for (std::int64_t dim : {1, 2, 3, 33, 64, 80, 96, 112, 128, 192, 256, 512, 576}) {
    at_every_level<TypeParam>({.q_len = 5, .kv_len = 37, .head_dim = dim, .value_dim = dim});
    at_every_level<TypeParam>({.num_q_heads = 3, .q_len = 1, .kv_len = 37, .head_dim = dim, .value_dim = dim});
  }
  for (auto [dim, value_dim] : {std::pair{192, 128}, {576, 512}, {64, 1}, {7, 65}, {768, 768}}) {
    at_every_level<TypeParam>({.q_len = 3, .kv_len = 21, .head_dim = dim, .value_dim = value_dim});
    at_every_level<TypeParam>({.num_q_heads = 2, .q_len = 1, .kv_len = 21, .head_dim = dim, .value_dim = value_dim});
  }
}

// Every length around the tiles, keys directly before a page nobody may touch, heads expanded with stride 0.
TYPED_TEST(FlashAttention, EveryLength) {
  for (std::int64_t len = 1; len <= 130; ++len) {
    const bool causal = len % 2;
    Shape shape{.num_q_heads = 2, .num_kv_heads = 2, .q_len = 2, .kv_len = len, .head_dim = 20, .value_dim = 18};
    shape.options.mask = causal ? Mask::causal : Mask::none;
    shape.expanded_keys = len % 3 == 0;
    at_every_level<TypeParam>(shape);
    shape.q_len = 1;
    at_every_level<TypeParam>(shape);
  }
}

TYPED_TEST(FlashAttention, CausalPrefill) {
  for (std::int64_t len : {1, 15, 16, 17, 63, 64, 65, 129, 200}) {
    Shape shape{.batch = 2,
                .num_q_heads = 3,
                .num_kv_heads = 3,
                .q_len = len,
                .kv_len = len,
                .head_dim = 24,
                .value_dim = 40,
                .token_major = len % 2 == 0};
    shape.options.mask = Mask::causal;
    at_every_level<TypeParam>(shape, {3});
  }
}

TYPED_TEST(FlashAttention, GroupsOfHeads) {
  for (auto [heads, kv_heads] : {std::pair{6, 2}, {9, 3}, {5, 1}, {16, 2}, {21, 7}, {10, 1}}) {
    for (std::int64_t q_len : {1, 2, 23, 90}) {
      Shape shape{.num_q_heads = heads,
                  .num_kv_heads = kv_heads,
                  .q_len = q_len,
                  .kv_len = 150,
                  .head_dim = 16,
                  .value_dim = 16};
      shape.options.mask = Mask::causal;
      shape.token_major = q_len % 2;
      at_every_level<TypeParam>(shape);
    }
  }
}

TYPED_TEST(FlashAttention, Windows) {
  for (std::int64_t window : {1, 2, 17, 64, 100, 500}) {
    Shape shape{.num_q_heads = 4, .num_kv_heads = 2, .q_len = 150, .kv_len = 190, .head_dim = 16, .value_dim = 16};
    shape.options.mask = Mask::causal;
    shape.options.window = window;
    at_every_level<TypeParam>(shape);
    shape.q_len = 1;
    at_every_level<TypeParam>(shape);
    shape.q_len = 70;
    shape.options = {.window_left = window - 1, .window_right = window / 2};
    at_every_level<TypeParam>(shape);
  }
}

TYPED_TEST(FlashAttention, MoreQueriesThanKeys) {
  Shape shape{.num_q_heads = 2, .num_kv_heads = 1, .q_len = 100, .kv_len = 33, .head_dim = 16, .value_dim = 16};
  shape.options.mask = Mask::causal;
  at_every_level<TypeParam>(shape);
}

// Long enough for the keys to be shared out: by rows of keys, and in blocks of queries.
TYPED_TEST(FlashAttention, SplitKeys) {
  for (auto [q_len, window] : {std::pair{std::int64_t{1}, kNoWindow}, {1, 1500}, {5, kNoWindow}, {20, 1100}}) {
    Shape shape{.num_q_heads = 3, .num_kv_heads = 1, .q_len = q_len, .kv_len = 2100, .head_dim = 16, .value_dim = 24};
    shape.options.mask = Mask::causal;
    shape.options.window = window;
    shape.q_size = 2;
    at_every_level<TypeParam>(shape, {1, 2, 3, 8});
  }
}

TYPED_TEST(FlashAttention, ScaleMayBeAnything) {
  for (float scale : {-0.7f, 0.0f, 3.0f}) {
    Shape shape{.num_q_heads = 2, .num_kv_heads = 1, .q_len = 9, .kv_len = 40, .head_dim = 17, .value_dim = 9};
    shape.options.mask = Mask::causal;
    shape.options.softmax_scale = scale;
    at_every_level<TypeParam>(shape);
    shape.q_len = 1;
    at_every_level<TypeParam>(shape);
  }
}

}  // namespace
}  // namespace ops_transformer
