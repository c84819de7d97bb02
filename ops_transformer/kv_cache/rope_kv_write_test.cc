// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/kv_cache/rope_kv_write.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "ops_transformer/kv_cache/kv_write.h"
#include "ops_transformer/kv_cache/rope_kv_write_kernel.h"
#include "ops_transformer/norm/rms_norm_reference.h"
#include "ops_transformer/posembedding/rope_reference.h"
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

constexpr std::int64_t kTokens = 21, kHeads = 5, kKvHeads = 2, kPageSize = 8, kPages = 4;

template <class New, class Cached>
void expect_matches_reference(Isa isa, RopeStyle style, std::int64_t dim, std::int64_t rotary_dim, bool norms) {
  SCOPED_TRACE(testing::Message() << isa_name(isa) << " dim " << dim << " rotary " << rotary_dim << " interleaved "
                                  << (style == RopeStyle::interleaved) << " norms " << norms);
  test::Random random(7);
  Context context({.num_threads = 2, .isa = isa});
  const std::int64_t value_dim = dim + 3, stride = (kHeads + kKvHeads) * dim + kKvHeads * value_dim;
  // One row holds q, k and v, as a stacked projection gives them.
  GuardedBuffer<New> rows(std::size_t(kTokens * stride));
  test::fill_normal(rows, random);
  const std::vector<New> before(rows.begin(), rows.end());
  GuardedBuffer<Cached> k_pages(std::size_t(kPages * kKvHeads * kPageSize * dim)),
      v_pages(std::size_t(kPages * kKvHeads * kPageSize * value_dim));
  std::memset(static_cast<void*>(k_pages.data()), 0x3f, k_pages.size() * sizeof(Cached));
  const KvPages pages{TensorView(k_pages.data(), kDType<Cached>, {kPages, kKvHeads, kPageSize, dim}),
                      TensorView(v_pages.data(), kDType<Cached>, {kPages, kKvHeads, kPageSize, value_dim})};
  std::vector<std::int64_t> slots, positions;
  for (std::int64_t t = 0; t < kTokens; ++t) {
    slots.push_back(t == 5 ? -1 : (t * 11) % (kPages * kPageSize));
    positions.push_back(t % 3 ? t * 5 : 3000 - t);  // from the table and beyond it
  }
  const RopeTable table({.rotary_dim = rotary_dim, .style = style, .table_len = 64});
  const TensorView q(rows.data(), kDType<New>, {kTokens, kHeads, dim}, {stride, dim, 1}),
      k(rows.data() + kHeads * dim, kDType<New>, {kTokens, kKvHeads, dim}, {stride, dim, 1}),
      v(rows.data() + (kHeads + kKvHeads) * dim, kDType<New>, {kTokens, kKvHeads, value_dim}, {stride, value_dim, 1});
  GuardedBuffer<float> q_norm{std::size_t(dim)}, k_norm{std::size_t(dim)};
  test::fill_normal(q_norm, random);
  test::fill_normal(k_norm, random);
  RopeKvWriteOptions options{.norm_eps = 1e-3f};
  if (norms) {
    options.q_norm = ConstTensorView(q_norm.data(), DType::f32, {dim});
    options.k_norm = ConstTensorView(k_norm.data(), DType::f32, {dim});
  }
  rope_kv_write(context, q, k, v, {positions.data(), DType::i64, {kTokens}}, table, slots, pages, options);

  const auto check = [&](const New* from, auto* to, std::int64_t position, DType out, GuardedBuffer<float>& norm) {
    std::vector<double> x;
    for (std::int64_t d = 0; d < dim; ++d) x.push_back(to_float(from[d]));
    if (norms) x = reference::rms_norm(x, std::vector<double>(norm.begin(), norm.end()), 1e-3f);
    const auto expected =
        reference::rotary_embedding(x, position, rotary_dim, 10000.0, 1.0, style == RopeStyle::interleaved);
    for (std::int64_t d = 0; d < dim; ++d) {
      const double e = expected[std::size_t(d)];
      const std::int64_t half = rotary_dim / 2;
      const std::int64_t partner = d >= rotary_dim                   ? d
                                   : style == RopeStyle::interleaved ? d ^ 1
                                                                     : (d + half) % rotary_dim;
      const double magnitude = std::abs(x[std::size_t(d)]) + std::abs(x[std::size_t(partner)]);
      ASSERT_NEAR(to_float(to[d]), e, test::tolerance(norms ? double(dim) : 2, magnitude, e, out)) << d;
    }
  };
  for (std::int64_t t = 0; t < kTokens; ++t) {
    for (std::int64_t h = 0; h < kHeads; ++h) {
      check(before.data() + t * stride + h * dim, rows.data() + t * stride + h * dim, positions[std::size_t(t)],
            kDType<New>, q_norm);
    }
    const std::int64_t slot = slots[std::size_t(t)];
    if (slot < 0) continue;
    for (std::int64_t h = 0; h < kKvHeads; ++h) {
      const std::int64_t row = (slot / kPageSize * kKvHeads + h) * kPageSize + slot % kPageSize;
      check(before.data() + t * stride + (kHeads + h) * dim, k_pages.data() + row * dim, positions[std::size_t(t)],
            kDType<Cached>, k_norm);
      for (std::int64_t d = 0; d < value_dim; ++d) {
        const float value = to_float(before[std::size_t(t * stride + (kHeads + kKvHeads) * dim + h * value_dim + d)]);
        ASSERT_EQ(to_float(v_pages[std::size_t(row * value_dim + d)]), to_float(test::from_float<Cached>(value)));
      }
    }
  }
  for (std::int64_t t = 0; t < kTokens; ++t) {
    const std::int64_t first = t * stride + kHeads * dim, num = stride - kHeads * dim;
    EXPECT_EQ(std::memcmp(before.data() + first, rows.data() + first, std::size_t(num) * sizeof(New)), 0);
  }
}

TEST(RopeKvWrite, MatchesReferenceAtEveryLevel) {
  for (Isa isa : supported_isas()) {
    if (!rope_kv_write_tokens.row(isa)) continue;
    for (RopeStyle style : {RopeStyle::half_split, RopeStyle::interleaved}) {
      for (auto [dim, rotary_dim] : {std::pair{64, 64}, {20, 14}, {2, 2}, {80, 32}}) {
        for (bool norms : {false, true}) {
          expect_matches_reference<float, float>(isa, style, dim, rotary_dim, norms);
          expect_matches_reference<float, BFloat16>(isa, style, dim, rotary_dim, norms);
          expect_matches_reference<BFloat16, float>(isa, style, dim, rotary_dim, norms);
          expect_matches_reference<BFloat16, BFloat16>(isa, style, dim, rotary_dim, norms);
        }
      }
    }
  }
}

// The fused pass and the separate ones leave the same bits, where the rounding between them is none.
TEST(RopeKvWrite, EqualsRotationThenWrite) {
  test::Random random(7);
  Context context({.num_threads = 2});
  for (DType cached : {DType::f32, DType::bf16}) {
    KvPool fused(
        {.num_layers = 1, .num_kv_heads = kKvHeads, .head_dim = 24, .page_size = 4, .num_pages = 8, .dtype = cached}),
        separate(fused.options());
    const SequenceId a = fused.add_sequence(), b = separate.add_sequence();
    std::vector<std::int64_t> slots(kTokens), positions;
    for (const KvPool* pool : {&fused, &separate}) {
      std::memset(pool->pages(0).k.data(), 0, KvPool::required_bytes(pool->options()));  // K and V of the one layer
    }
    fused.append(a, slots);
    separate.append(b, slots);
    for (std::int64_t t = 0; t < kTokens; ++t) positions.push_back(t);
    std::vector<float> q(kTokens * kHeads * 24), k(kTokens * kKvHeads * 24), v(k.size());
    for (auto* t : {&q, &k, &v}) test::fill_normal(*t, random);
    std::vector<float> q2 = q, k2 = k;
    const RopeTable table({.rotary_dim = 24});
    const ConstTensorView places(positions.data(), DType::i64, {kTokens});
    const TensorView v_view(v.data(), DType::f32, {kTokens, kKvHeads, 24}),
        q_view(q.data(), DType::f32, {kTokens, kHeads, 24}), k_view(k.data(), DType::f32, {kTokens, kKvHeads, 24}),
        q2_view(q2.data(), DType::f32, {kTokens, kHeads, 24}), k2_view(k2.data(), DType::f32, {kTokens, kKvHeads, 24});
    rope_kv_write(context, q_view, k_view, v_view, places, table, slots, fused.pages(0));
    rotary_embedding(context, q2_view, places, table, q2_view);
    rotary_embedding(context, k2_view, places, table, k2_view);
    kv_write(context, k2_view, v_view, slots, separate.pages(0));
    EXPECT_EQ(q, q2);
    for (auto [x, y] : {std::pair{fused.pages(0).k, separate.pages(0).k}, {fused.pages(0).v, separate.pages(0).v}}) {
      EXPECT_EQ(std::memcmp(x.data(), y.data(), std::size_t(x.num_elements()) * element_bytes(cached)), 0);
    }
  }
}

TEST(RopeKvWrite, ErrorsComeBeforeAnythingIsWritten) {
  Context context({.num_threads = 1});
  KvPool pool({.num_layers = 1, .num_kv_heads = 1, .head_dim = 4, .page_size = 4, .num_pages = 1, .dtype = DType::f32});
  std::vector<float> q = {1, 2, 3, 4}, k = {1, 2, 3, 4};
  const TensorView q_view(q.data(), DType::f32, {1, 1, 4}), k_view(k.data(), DType::f32, {1, 1, 4});
  const auto message = [&](std::int64_t position, std::int64_t slot, std::int64_t rotary_dim) -> std::string {
    return message_of([&] {
      rope_kv_write(context, q_view, k_view, k_view, {&position, DType::i64, {1}},
                    RopeTable({.rotary_dim = rotary_dim}), std::span(&slot, 1), pool.pages(0));
    });
  };
  EXPECT_NE(message(std::int64_t{1} << 32, 0, 4).find("positions[0] is 4294967296"), std::string::npos);
  EXPECT_NE(message(0, 4, 4).find("slots[0] is 4"), std::string::npos);
  EXPECT_NE(message(0, 0, 6).find("rotary_dim is 6, must be at most head_dim = 4"), std::string::npos);
  const auto norm_message = [&](const RopeKvWriteOptions& options) -> std::string {
    const std::int64_t zero = 0;
    return message_of([&] {
      rope_kv_write(context, q_view, k_view, k_view, {&zero, DType::i64, {1}}, RopeTable({.rotary_dim = 4}),
                    std::span(&zero, 1), pool.pages(0), options);
    });
  };
  EXPECT_NE(norm_message({.q_norm = ConstTensorView(k.data(), DType::f32, {3})}).find("q_norm must be [4]"),
            std::string::npos);
  EXPECT_NE(norm_message({.k_norm = ConstTensorView(q.data(), DType::f32, {4})}).find("overlap k_norm"),
            std::string::npos);
  EXPECT_NE(norm_message({.norm_eps = -1.0f}).find("norm_eps is -1"), std::string::npos);
  const std::int64_t place = 0;
  EXPECT_THROW(rope_kv_write(context, q_view, q_view, k_view, {&place, DType::i64, {1}}, RopeTable({.rotary_dim = 4}),
                             std::span(&place, 1), pool.pages(0)),
               InvalidArgument);
  EXPECT_EQ(q, (std::vector<float>{1, 2, 3, 4}));
  EXPECT_EQ(message(0, 0, 4), "");
  const std::int64_t places[2] = {0, 1};
  const std::vector<float> rows(8);
  const ConstTensorView two(rows.data(), DType::f32, {2, 1, 4});
  EXPECT_NE(message_of([&] {
              rope_kv_write(context, {q.data(), DType::f32, {2, 1, 4}, {0, 4, 1}}, two, two, {places, DType::i64, {2}},
                            RopeTable({.rotary_dim = 4}), places, pool.pages(0));
            }).find("q has stride 0"),
            std::string::npos);
}

}  // namespace
}  // namespace ops_transformer
