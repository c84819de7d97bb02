// SPDX-License-Identifier: Apache-2.0
// Masks, bias, soft-cap, ALiBi and sinks in every combination, against their definitions in float64; hidden keys and
// values are NaN or infinite.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <numeric>
#include <vector>

#include "ops_transformer/attention/attention_kernel.h"
#include "ops_transformer/attention/flash_attention.h"
#include "ops_transformer/attention/flash_attention_reference.h"
#include "tests/support/dtype_of.h"
#include "tests/support/guarded_buffer.h"
#include "tests/support/random.h"
#include "tests/support/tolerance.h"

namespace ops_transformer {
namespace {

using test::GuardedBuffer;
using test::kDType;

constexpr double kHidden = -std::numeric_limits<double>::infinity();

// A mask or a bias [batch, heads, rows, keys] of which some dimensions are broadcast, with its strides.
template <class T>
struct Grid {
  std::int64_t sizes[4], strides[4];
  std::unique_ptr<GuardedBuffer<T>> data;

  Grid(test::Random& random, std::int64_t batch, std::int64_t heads, std::int64_t rows, std::int64_t keys) {
    const std::int64_t full[4] = {batch, heads, rows, keys};
    for (int d = 0; d < 4; ++d) sizes[d] = random.integer(0, d < 2 ? 1 : 3) ? full[d] : 1;
    // Keys contiguous, or queries: then the kernel gathers.
    const bool keys_last = random.integer(0, 2) != 0;
    strides[3] = keys_last ? 1 : sizes[2];
    strides[2] = keys_last ? sizes[3] : 1;
    strides[1] = sizes[2] * sizes[3];
    strides[0] = strides[1] * sizes[1];
    data = std::make_unique<GuardedBuffer<T>>(std::size_t(strides[0] * sizes[0]));
  }
  std::size_t index(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const {
    const std::int64_t at[4] = {b, h, i, j};
    std::int64_t index = 0;
    for (int d = 0; d < 4; ++d) index += sizes[d] == 1 ? 0 : at[d] * strides[d];
    return std::size_t(index);
  }
  T& at(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) { return (*data)[index(b, h, i, j)]; }
  ConstTensorView view(DType dtype) const {
    return ConstTensorView(data->data(), dtype, std::span(sizes, 4), std::span(strides, 4));
  }
};

// Philox4x32-10 as Salmon et al. (2011) write it down.
std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> c, std::array<std::uint32_t, 2> k) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{c[0]} * 0xD2511F53u, b = std::uint64_t{c[2]} * 0xCD9E8D57u;
    c = {std::uint32_t(b >> 32) ^ c[1] ^ k[0], std::uint32_t(b), std::uint32_t(a >> 32) ^ c[3] ^ k[1],
         std::uint32_t(a)};
    k = {k[0] + 0x9E3779B9u, k[1] + 0xBB67AE85u};
  }
  return c;
}

template <class T>
class RuleProblem {
 public:
  explicit RuleProblem(std::uint64_t seed) : random_(seed) {
    draw_shape();
    const auto fill = [&](std::unique_ptr<GuardedBuffer<T>>& data, std::int64_t count) {
      data = std::make_unique<GuardedBuffer<T>>(std::size_t(count));
      test::fill_normal(*data, random_);
    };
    fill(q_, batch_ * heads_ * q_len_ * dim_);
    fill(k_, batch_ * kv_heads_ * kv_len_ * dim_);
    fill(v_, batch_ * kv_heads_ * kv_len_ * value_dim_);
    draw_rules();
    poison_hidden_keys();
    compute();
  }

  void expect_matches(Context& context) {
    SCOPED_TRACE(testing::Message() << isa_name(context.isa()) << " threads " << context.num_threads() << " B" << batch_
                                    << " H" << heads_ << ":" << kv_heads_ << " L" << q_len_ << ":" << kv_len_ << " D"
                                    << dim_ << ":" << value_dim_ << " cap " << options_.logit_soft_cap << " bias "
                                    << bool(bias_) << " first " << options_.bias_before_scale << " visible "
                                    << bool(visible_) << " tree " << bool(options_.tree) << " alibi "
                                    << !slopes_.empty() << " sinks " << !sinks_.empty() << " prefix "
                                    << !prefixes_.empty() << " deterministic " << context.deterministic());
    const std::size_t num_rows = std::size_t(batch_ * heads_ * q_len_);
    GuardedBuffer<T> out(num_rows * std::size_t(value_dim_));
    GuardedBuffer<float> lse(num_rows), largest(num_rows * 8), sums(num_rows * 8);
    FlashAttentionOptions options = options_;
    options.lse = TensorView(lse.data(), DType::f32, {batch_, heads_, q_len_});
    options.softmax_max = TensorView(largest.data(), DType::f32, {batch_, heads_, q_len_, 8});
    options.softmax_sum = TensorView(sums.data(), DType::f32, {batch_, heads_, q_len_, 8});
    flash_attention(context, {q_->data(), kDType<T>, {batch_, heads_, q_len_, dim_}},
                    {k_->data(), kDType<T>, {batch_, kv_heads_, kv_len_, dim_}},
                    {v_->data(), kDType<T>, {batch_, kv_heads_, kv_len_, value_dim_}},
                    {out.data(), kDType<T>, {batch_, heads_, q_len_, value_dim_}}, options);
    const double weight_error = kDType<T> == DType::bf16 ? 2 * test::epsilon(DType::bf16) : 0;
    for (std::size_t r = 0; r < num_rows; ++r) {
      const reference::AttentionRow& row = rows_[r];
      const double n = double(row.num_keys + 1);
      const double score_error = test::tolerance(double(dim_), row.score_magnitude, 0, DType::f32);
      for (std::size_t d = 0; d < std::size_t(value_dim_); ++d) {
        const double bound = (2 * score_error + weight_error) * row.magnitude[d] +
                             test::tolerance(n, row.magnitude[d], row.out[d], kDType<T>);
        ASSERT_NEAR(to_float(out[r * std::size_t(value_dim_) + d]), row.out[d], bound) << "row " << r << " d " << d;
      }
      if (row.lse == kHidden) {
        ASSERT_TRUE(std::isinf(lse[r]) && lse[r] < 0) << lse[r];
        ASSERT_TRUE(std::isinf(largest[r * 8]) && largest[r * 8] < 0);
        ASSERT_EQ(sums[r * 8 + 7], 0.0f);
        continue;
      }
      // The maximum is kept in powers of two: two conversions of one value.
      const double units = test::tolerance(1, std::abs(row.max), row.max, DType::f32);
      const double sum_error = units + score_error + weight_error + test::tolerance(n, 1, row.lse, DType::f32);
      ASSERT_NEAR(lse[r], row.lse, sum_error) << "row " << r;
      for (std::size_t i = 0; i < 8; ++i) {
        ASSERT_NEAR(largest[r * 8 + i], row.max, score_error + units);
        ASSERT_NEAR(sums[r * 8 + i], row.sum, row.sum * 2 * sum_error);
      }
    }
  }

 private:
  void draw_shape() {
    batch_ = random_.integer(1, 2);
    kv_heads_ = random_.integer(1, 2);
    heads_ = kv_heads_ * random_.integer(1, 4);
    const std::int64_t lens[] = {1, 1, 2, 17, 40, 80};
    q_len_ = lens[random_.integer(0, 5)];
    kv_len_ = random_.integer(0, 3) ? random_.integer(1, 150) : random_.integer(600, 700);
    dim_ = random_.integer(1, 40);
    value_dim_ = random_.integer(1, 40);
  }

  void draw_rules() {
    const auto maybe = [&](int one_in) { return random_.integer(0, one_in - 1) == 0; };
    options_.softmax_scale = maybe(3) ? random_.uniform(-0.5f, 0.5f) : 1 / std::sqrt(float(dim_));
    if (maybe(3)) options_.align = MaskAlign::first;
    if (maybe(2)) options_.mask = Mask::causal;
    if (maybe(3)) {
      for (std::int64_t b = 0; b < batch_; ++b) prefixes_.push_back(random_.integer(0, kv_len_));
      options_.prefix_lens = prefixes_;
    } else if (maybe(2)) {
      options_.window_left = random_.integer(-5, 40);
      if (maybe(2)) options_.window_right = random_.integer(-30, 30);
    }
    if (maybe(3)) options_.logit_soft_cap = random_.uniform(0.5f, 4.0f);
    if (maybe(3)) {
      for (std::int64_t h = 0; h < heads_; ++h) slopes_.push_back(random_.uniform(0, 0.5f));
      options_.alibi_slopes = slopes_;
    }
    if (maybe(3)) {
      for (std::int64_t h = 0; h < heads_; ++h) sinks_.push_back(h == 1 ? float(kHidden) : random_.normal());
      options_.sinks = sinks_;
    }
    if (maybe(2)) {
      bias_ = std::make_unique<Grid<T>>(random_, batch_, heads_, q_len_, kv_len_);
      for (T& x : *bias_->data) x = test::from_float<T>(random_.integer(0, 4) ? random_.normal() : float(kHidden));
      options_.bias = bias_->view(kDType<T>);
      options_.bias_before_scale = *options_.softmax_scale > 0 && maybe(2);
    }
    if (maybe(4)) {
      dropout_ = std::make_unique<Grid<std::uint8_t>>(random_, batch_, heads_, q_len_, (kv_len_ + 7) / 8);
      for (std::uint8_t& x : *dropout_->data) x = std::uint8_t(random_.integer(0, 255));
      options_.dropout_mask = dropout_->view(DType::u8);
      options_.keep_prob = 0.75f;
    } else if (maybe(3)) {
      options_.dropout_seed = random_.engine()();
      options_.keep_prob = random_.uniform(0.05f, 1.0f);
    }
    const bool tree = q_len_ <= kv_len_ && maybe(4);
    if (tree || maybe(2)) {
      visible_ =
          std::make_unique<Grid<std::uint8_t>>(random_, batch_, tree ? 1 : heads_, q_len_, tree ? q_len_ : kv_len_);
      for (std::uint8_t& x : *visible_->data) x = random_.integer(0, 2) != 0;
      if (tree && (visible_->sizes[2] != q_len_ || visible_->sizes[3] != q_len_)) {
        visible_.reset();
      } else if (tree) {
        options_.tree = ConstTensorView(
            visible_->data->data(), DType::boolean, std::vector<std::int64_t>{visible_->sizes[0], q_len_, q_len_},
            std::vector<std::int64_t>{visible_->strides[0], visible_->strides[2], visible_->strides[3]});
      } else {
        options_.visible = visible_->view(DType::boolean);
      }
    }
  }

  // The rules, written down once more.
  bool sees(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) {
    const std::int64_t p = options_.align == MaskAlign::first ? i : i + kv_len_ - q_len_;
    bool seen = true;
    if (options_.mask == Mask::causal) seen &= j <= p;
    if (options_.window_left != kNoWindow) seen &= j >= p - options_.window_left;
    if (options_.window_right != kNoWindow) seen &= j <= p + options_.window_right;
    if (!prefixes_.empty()) seen |= j < prefixes_[std::size_t(b)];
    if (options_.visible) seen &= visible_->at(b, h, i, j) != 0;
    const std::int64_t column = j - (kv_len_ - q_len_);
    if (options_.tree && column >= 0) seen &= visible_->at(b, 0, i, column) != 0;
    if (bias_) seen &= to_float(bias_->at(b, h, i, j)) != float(kHidden);
    return seen;
  }

  reference::RuledScore rule(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j, double dot,
                             double magnitude) {
    if (!sees(b, h, i, j)) return {kHidden, 0};
    const double scale = double(*options_.softmax_scale), cap = double(options_.logit_soft_cap);
    const double bias = bias_ ? double(to_float(bias_->at(b, h, i, j))) : 0;
    const double before = options_.bias_before_scale ? bias : 0, after = options_.bias_before_scale ? 0 : bias;
    double score = scale * (dot + before);
    if (cap > 0) score = cap * std::tanh(score / cap);
    const double distance = double(std::abs((options_.align == MaskAlign::first ? i : i + kv_len_ - q_len_) - j));
    const double alibi = slopes_.empty() ? 0 : double(slopes_[std::size_t(h)]) * distance;
    return {score + after - alibi, std::abs(scale) * (magnitude + std::abs(before)) + std::abs(after) + alibi};
  }

  bool keeps(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) {
    if (dropout_) return dropout_->at(b, h, i, j / 8) >> (j % 8) & 1;
    if (!options_.dropout_seed) return true;
    const std::uint64_t seed = *options_.dropout_seed;
    const auto words = philox({std::uint32_t(j / 4), std::uint32_t(i), std::uint32_t(h), std::uint32_t(b)},
                              {std::uint32_t(seed), std::uint32_t(seed >> 32)});
    return double(words[std::size_t(j % 4)]) < std::floor(double(options_.keep_prob) * 0x1p32);
  }

  // What no row sees is poison; so is what some row doesn't see where that can be told apart.
  void poison_hidden_keys() {
    for (std::int64_t b = 0; b < batch_; ++b) {
      for (std::int64_t kv = 0; kv < kv_heads_; ++kv) {
        for (std::int64_t j = 0; j < kv_len_; ++j) {
          bool seen = false;
          for (std::int64_t h = kv * (heads_ / kv_heads_); h < (kv + 1) * (heads_ / kv_heads_); ++h) {
            for (std::int64_t i = 0; i < q_len_; ++i) seen |= sees(b, h, i, j);
          }
          if (seen) continue;
          const std::int64_t row = (b * kv_heads_ + kv) * kv_len_ + j;
          const float poison = j % 2 ? std::nanf("") : std::numeric_limits<float>::infinity();
          for (std::int64_t d = 0; d < dim_; ++d) (*k_)[std::size_t(row * dim_ + d)] = test::from_float<T>(poison);
          for (std::int64_t d = 0; d < value_dim_; ++d) {
            (*v_)[std::size_t(row * value_dim_ + d)] = test::from_float<T>(poison);
          }
        }
      }
    }
  }

  void compute() {
    for (std::int64_t b = 0; b < batch_; ++b) {
      for (std::int64_t h = 0; h < heads_; ++h) {
        const std::int64_t kv = b * kv_heads_ + h / (heads_ / kv_heads_);
        for (std::int64_t i = 0; i < q_len_; ++i) {
          std::vector<double> query;
          for (std::int64_t d = 0; d < dim_; ++d) {
            query.push_back(double(to_float((*q_)[std::size_t(((b * heads_ + h) * q_len_ + i) * dim_ + d)])));
          }
          rows_.push_back(reference::attention_row(
              query,
              [&](std::int64_t j, std::int64_t d) {
                return double(to_float((*k_)[std::size_t((kv * kv_len_ + j) * dim_ + d)]));
              },
              [&](std::int64_t j, std::int64_t d) {
                if (!keeps(b, h, i, j)) return 0.0;
                const double value = double(to_float((*v_)[std::size_t((kv * kv_len_ + j) * value_dim_ + d)]));
                return value / double(options_.keep_prob);
              },
              value_dim_, {0, kv_len_}, 1,
              [&](std::int64_t j, double dot, double magnitude) { return rule(b, h, i, j, dot, magnitude); },
              sinks_.empty() ? kHidden : double(sinks_[std::size_t(h)])));
        }
      }
    }
  }

  test::Random random_;
  std::int64_t batch_, heads_, kv_heads_, q_len_, kv_len_, dim_, value_dim_;
  FlashAttentionOptions options_;
  std::unique_ptr<GuardedBuffer<T>> q_, k_, v_;
  std::unique_ptr<Grid<T>> bias_;
  std::unique_ptr<Grid<std::uint8_t>> visible_, dropout_;
  std::vector<float> slopes_, sinks_;
  std::vector<std::int64_t> prefixes_;
  std::vector<reference::AttentionRow> rows_;
};

// Random123's known answers: the reference above is the published generator.
TEST(Philox, ReferenceGivesTheKnownAnswers) {
  EXPECT_EQ(philox({}, {}), (std::array<std::uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr std::uint32_t kOnes = 0xffffffff;
  EXPECT_EQ(philox({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
            (std::array<std::uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
}

template <class T>
class AttentionRules : public testing::Test {};
using Types = testing::Types<float, BFloat16, Float16>;
TYPED_TEST_SUITE(AttentionRules, Types);

TYPED_TEST(AttentionRules, MatchTheirDefinitionInEveryCombination) {
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    RuleProblem<TypeParam> problem(seed);
    for (Isa isa : supported_isas()) {
      if (!flash_tiles.row(isa)) continue;
      for (bool deterministic : {false, true}) {
        Context context({.num_threads = 1 + int(seed % 3), .deterministic = deterministic, .isa = isa});
        problem.expect_matches(context);
        if (this->HasFatalFailure()) return;
      }
    }
  }
}

// Blocks that a boolean mask hides are not computed; a bias of -inf over the same keys is, and gives the same bits.
TYPED_TEST(AttentionRules, HiddenBlocksAreSkippedAndChangeNothing) {
  using T = TypeParam;
  constexpr std::int64_t kHeads = 4, kKvHeads = 2, kLen = 700, kDim = 40;
  for (std::int64_t q_len : {1, 3, 150}) {
    test::Random random(6);
    GuardedBuffer<T> q(std::size_t(kHeads * q_len * kDim)), k(kKvHeads * kLen * kDim), v(kKvHeads * kLen * kDim);
    test::fill_normal(q, random);
    test::fill_normal(k, random);
    test::fill_normal(v, random);
    GuardedBuffer<std::uint8_t> visible(std::size_t(q_len * kLen));
    GuardedBuffer<float> bias(std::size_t(q_len * kLen));
    for (std::int64_t i = 0; i < q_len; ++i) {
      for (std::int64_t j = 0; j < kLen; ++j) {
        // Of 130 keys at a time every third stretch, from row 120 on no key; the second stretch for none but row 2.
        const std::int64_t stretch = j / 130;
        const bool seen = i < 120 && (stretch == 1 ? i == 2 : stretch % 3 == 0);
        visible[std::size_t(i * kLen + j)] = seen;
        bias[std::size_t(i * kLen + j)] = seen ? 0.0f : float(kHidden);
      }
    }
    for (std::int64_t row = 0; row < kKvHeads * kLen; ++row) {
      if (row % kLen / 130 % 3 != 2) continue;
      for (std::int64_t d = 0; d < kDim; ++d) {
        k[std::size_t(row * kDim + d)] = v[std::size_t(row * kDim + d)] = test::from_float<T>(std::nanf(""));
      }
    }
    for (Isa isa : supported_isas()) {
      if (!flash_tiles.row(isa)) continue;
      for (bool deterministic : {false, true}) {
        Context context({.num_threads = 1, .deterministic = deterministic, .isa = isa});
        const auto run = [&](const FlashAttentionOptions& options) {
          std::vector<float> out(std::size_t(kHeads * q_len * kDim), NAN);
          flash_attention(context, {q.data(), kDType<T>, {1, kHeads, q_len, kDim}},
                          {k.data(), kDType<T>, {1, kKvHeads, kLen, kDim}},
                          {v.data(), kDType<T>, {1, kKvHeads, kLen, kDim}},
                          {out.data(), DType::f32, {1, kHeads, q_len, kDim}}, options);
          return out;
        };
        const auto skipped = run({.visible = ConstTensorView(visible.data(), DType::boolean, {q_len, kLen})});
        EXPECT_EQ(skipped, run({.bias = ConstTensorView(bias.data(), DType::f32, {q_len, kLen})}))
            << isa_name(isa) << " q_len " << q_len << " deterministic " << deterministic;
        for (float x : skipped) ASSERT_FALSE(std::isnan(x));
      }
    }
  }
}

// The same weights are dropped whatever the threads, and whether a query comes alone or with others.
TEST(Dropout, DependsOnSeedAndPlaceOnly) {
  constexpr std::int64_t kHeads = 3, kLen = 300, kDim = 16;
  test::Random random(8);
  GuardedBuffer<float> q(kHeads * kLen * kDim), k(kHeads * kLen * kDim), v(kHeads * kLen * kDim);
  for (auto* x : {&q, &k, &v}) test::fill_normal(*x, random);
  const auto run = [&](Context& context, std::uint64_t seed) {
    std::vector<float> out(kHeads * kLen * kDim, NAN);
    const std::vector<std::int64_t> sizes = {1, kHeads, kLen, kDim};
    flash_attention(context, {q.data(), DType::f32, sizes}, {k.data(), DType::f32, sizes},
                    {v.data(), DType::f32, sizes}, {out.data(), DType::f32, sizes},
                    {.dropout_seed = seed, .keep_prob = 0.5f});
    return out;
  };
  for (Isa isa : supported_isas()) {
    if (!flash_tiles.row(isa)) continue;
    Context one({.num_threads = 1, .deterministic = true, .isa = isa});
    const auto expected = run(one, 42);
    EXPECT_NE(run(one, 43), expected);
    for (int num_threads : {2, 3, 8}) {
      Context context({.num_threads = num_threads, .deterministic = true, .isa = isa});
      EXPECT_EQ(run(context, 42), expected) << isa_name(isa);
    }
  }
}

// Offsets in such a mask overflow 32 bits. Most of it is never written, and read as one page of zeros.
TEST(HiddenBlocks, MaskOfMoreThanTwoToThe31Cells) {
  constexpr std::int64_t kLen = 46342;
  constexpr std::size_t kBytes = std::size_t{kLen} * kLen;
  void* memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  madvise(memory, kBytes, MADV_NOHUGEPAGE);
  auto* visible = static_cast<std::uint8_t*>(memory);
  for (std::int64_t row = 0; row < kLen; ++row) visible[row * kLen + row % 7] = 1;
  const std::vector<float> zeros(kLen);
  std::vector<float> v(kLen), out(kLen, NAN);
  std::iota(v.begin(), v.end(), 0.0f);
  Context context({.num_threads = 2});
  const std::vector<std::int64_t> sizes = {1, 1, kLen, 1};
  flash_attention(context, {zeros.data(), DType::f32, sizes}, {zeros.data(), DType::f32, sizes},
                  {v.data(), DType::f32, sizes}, {out.data(), DType::f32, sizes},
                  {.visible = ConstTensorView(memory, DType::boolean, {kLen, kLen})});
  munmap(memory, kBytes);
  for (std::int64_t row = 0; row < kLen; ++row) ASSERT_EQ(out[std::size_t(row)], float(row % 7)) << row;
}

}  // namespace
}  // namespace ops_transformer
