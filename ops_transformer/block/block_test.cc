// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "ops_transformer/block/attention_block.h"
#include "ops_transformer/block/ffn_block.h"
#include "ops_transformer/block/qkv_epilogue_kernel.h"
#include "ops_transformer/kv_cache/kv_write.h"
#include "ops_transformer/norm/rms_norm.h"
#include "ops_transformer/profiler/profiler.h"
#include "tests/support/dtype_of.h"
#include "tests/support/guarded_buffer.h"
#include "tests/support/message_of.h"
#include "tests/support/random.h"

namespace ops_transformer {
namespace {

using test::GuardedBuffer;
using test::kDType;
using test::message_of;

template <class T>
T rounded(float x) {
  if constexpr (std::is_same_v<T, BFloat16>) return to_bfloat16(x);
  if constexpr (std::is_same_v<T, Float16>) return to_float16(x);
  if constexpr (std::is_same_v<T, float>) return x;
}

template <class To>
std::vector<To> converted(const std::vector<float>& values) {
  std::vector<To> out;
  for (float v : values) out.push_back(rounded<To>(v));
  return out;
}

template <class T>
void fill(std::vector<T>& values, std::size_t count, test::Random& random, float scale) {
  values.resize(count);
  test::fill_normal(values, random, scale);
}

struct Case {
  AttentionShape shape;
  std::int64_t rotary_dim = 0;  // 0: none
  std::int64_t hidden = 48, table_len = 64;
  std::vector<std::int64_t> offsets{};  // empty: one sequence of 9
  bool norm = true, residual = true, causal = true;
};

// The weights, the input and the operators one by one: sums that are f32 between them, rounded where the block rounds.
template <class T>
class Sublayer {
 public:
  explicit Sublayer(const Case& one)
      : c(one),
        tokens(one.offsets.empty() ? 9 : one.offsets.back()),
        value_dim(one.shape.value_dim ? one.shape.value_dim : one.shape.head_dim),
        q_size(one.shape.num_q_heads * one.shape.head_dim),
        k_size(one.shape.num_kv_heads * one.shape.head_dim),
        v_size(one.shape.num_kv_heads * value_dim) {
    test::Random random(11);
    fill(x, std::size_t(tokens * c.hidden), random, 1.0f);
    fill(wq, std::size_t(q_size * c.hidden), random, 0.2f);
    fill(wk, std::size_t(k_size * c.hidden), random, 0.2f);
    fill(wv, std::size_t(v_size * c.hidden), random, 0.2f);
    fill(wo, std::size_t(c.hidden * c.shape.num_q_heads * value_dim), random, 0.2f);
    fill(gains, std::size_t(c.hidden), random, 1.0f);
    // From the table, beyond it, and backwards.
    for (std::int64_t t = 0; t < tokens; ++t) positions.push_back(t % 3 == 1 ? 5000 + t : t % 4 == 3 ? -t : 2 * t);
  }

  ConstTensorView matrix(const std::vector<T>& w, std::int64_t rows) const {
    return {w.data(), kDType<T>, {rows, std::int64_t(w.size()) / rows}};
  }
  ConstTensorView x_view() const { return matrix(x, tokens); }
  ConstTensorView positions_view() const { return {positions.data(), DType::i64, {tokens}}; }
  RowNorm norm() const { return {.weight = ConstTensorView(gains.data(), DType::f32, {c.hidden}), .eps = 1e-6f}; }

  AttentionWeights packed(Context& context) const {
    return AttentionWeights::pack(context, matrix(wq, q_size), matrix(wk, k_size), matrix(wv, v_size),
                                  matrix(wo, c.hidden), c.shape);
  }

  std::vector<float> project(Context& context, const std::vector<T>& w, std::int64_t outputs) const {
    std::vector<float> out(std::size_t(tokens * outputs));
    const auto weights = PackedWeights::pack(context, matrix(w, outputs));
    const TensorView view(out.data(), DType::f32, {tokens, outputs});
    if (c.norm) {
      norm_linear(context, x_view(), norm(), weights, view);
    } else {
      linear(context, x_view(), weights, view);
    }
    return out;
  }

  template <class Row>
  TensorView heads(std::vector<Row>& rows, std::int64_t num_heads) const {
    return {rows.data(), kDType<Row>, {tokens, num_heads, std::int64_t(rows.size()) / tokens / num_heads}};
  }

  // Queries, keys and values of type Row; attend(q, k, v, out) does the rest.
  template <class Row, class Attend>
  std::vector<T> unfused(Context& context, const RopeTable* table, Attend&& attend) const {
    std::vector<float> q32 = project(context, wq, q_size), k32 = project(context, wk, k_size),
                       v32 = project(context, wv, v_size);
    std::vector<Row> q, k;
    const bool in_tiles = table && c.shape.head_dim % 32 == 0 && table->rotary_dim() == c.shape.head_dim;
    if (in_tiles) {
      for (auto& [rows, n] : {std::pair{&q32, c.shape.num_q_heads}, {&k32, c.shape.num_kv_heads}})
        rotary_embedding(context, heads(*rows, n), positions_view(), *table, heads(*rows, n));
    }
    q = converted<Row>(q32);
    k = converted<Row>(k32);
    std::vector<Row> v = converted<Row>(v32), attended(std::size_t(tokens * c.shape.num_q_heads * value_dim));
    if (table && !in_tiles) {
      rotary_embedding(context, heads(q, c.shape.num_q_heads), positions_view(), *table, heads(q, c.shape.num_q_heads));
      rotary_embedding(context, heads(k, c.shape.num_kv_heads), positions_view(), *table,
                       heads(k, c.shape.num_kv_heads));
    }
    attend(heads(q, c.shape.num_q_heads), heads(k, c.shape.num_kv_heads), heads(v, c.shape.num_kv_heads),
           heads(attended, c.shape.num_q_heads));
    std::vector<T> out(std::size_t(tokens * c.hidden));
    LinearOptions last{};
    if (c.residual) last.residual = x_view();
    linear(context, {attended.data(), kDType<Row>, {tokens, c.shape.num_q_heads * value_dim}},
           PackedWeights::pack(context, matrix(wo, c.hidden)), {out.data(), kDType<T>, {tokens, c.hidden}}, last);
    return out;
  }

  AttentionBlockOptions options(const RopeTable* table) const {
    AttentionBlockOptions o{.residual_connection = c.residual, .offsets = c.offsets, .causal = c.causal};
    if (c.norm) o.norm = norm();
    if (table) {
      o.rope = table;
      o.positions = positions_view();
    }
    return o;
  }

  Case c;
  std::int64_t tokens, value_dim, q_size, k_size, v_size;
  std::vector<T> x, wq, wk, wv, wo;
  std::vector<float> gains;
  std::vector<std::int64_t> positions;
};

template <class T>
void expect_bits_of_unfused(const Case& one) {
  const Sublayer<T> layer(one);
  std::optional<RopeTable> table;
  if (one.rotary_dim) {
    table.emplace(RopeOptions{.rotary_dim = one.rotary_dim, .style = one.shape.rope_style, .table_len = one.table_len});
  }
  const std::vector<std::int64_t> whole = {0, layer.tokens};
  const auto& offsets = one.offsets.empty() ? whole : one.offsets;
  for (Isa isa : supported_isas()) {
    if (!qkv_epilogue.row(isa)) continue;
    SCOPED_TRACE(testing::Message() << isa_name(isa) << " " << dtype_name(kDType<T>) << " head_dim "
                                    << one.shape.head_dim << " rotary " << one.rotary_dim);
    Context context({.num_threads = 2, .isa = isa});
    const auto expected =
        layer.template unfused<T>(context, table ? &*table : nullptr, [&](auto q, auto k, auto v, auto attended) {
          flash_attention_varlen(context, q, k, v, attended, offsets, offsets,
                                 {.mask = one.causal ? Mask::causal : Mask::none});
        });
    std::vector<T> out(expected.size(), rounded<T>(NAN));
    attention_block(context, layer.x_view(), layer.packed(context), {out.data(), kDType<T>, {layer.tokens, one.hidden}},
                    layer.options(table ? &*table : nullptr));
    ASSERT_EQ(std::memcmp(out.data(), expected.data(), out.size() * sizeof(T)), 0);
  }
}

template <class T>
class AttentionBlock : public testing::Test {};
using Types = testing::Types<float, BFloat16, Float16>;
TYPED_TEST_SUITE(AttentionBlock, Types);

TYPED_TEST(AttentionBlock, HasTheBitsOfItsOperators) {
  using T = TypeParam;
  const RopeStyle interleaved = RopeStyle::interleaved;
  expect_bits_of_unfused<T>({.shape = {4, 2, 64}, .rotary_dim = 64});
  expect_bits_of_unfused<T>({.shape = {2, 1, 32, 0, interleaved}, .rotary_dim = 32});
  expect_bits_of_unfused<T>({.shape = {2, 2, 96}, .rotary_dim = 96, .offsets = {0, 5, 5, 9}, .causal = false});
  expect_bits_of_unfused<T>({.shape = {3, 1, 64, 20}, .rotary_dim = 64, .residual = false});
  expect_bits_of_unfused<T>({.shape = {2, 1, 64}, .norm = false});
  // Rotated by a pass of their own: a part of the head, heads that are no whole pairs of tiles.
  expect_bits_of_unfused<T>({.shape = {2, 1, 64}, .rotary_dim = 32});
  expect_bits_of_unfused<T>({.shape = {2, 2, 16, 7}, .rotary_dim = 16});
  expect_bits_of_unfused<T>({.shape = {2, 2, 24}, .rotary_dim = 0});
}

// Two sequences in a cache, written over several calls and in scattered pages.
template <class T, class Cached>
void expect_bits_with_cache(std::int64_t head_dim, std::int64_t rotary_dim) {
  Case one{.shape = {4, 2, head_dim}, .rotary_dim = rotary_dim};
  one.offsets = {0, 4, 9};
  const Sublayer<T> layer(one);
  const RopeTable table({.rotary_dim = rotary_dim, .table_len = 64});
  using Row = std::conditional_t<std::is_same_v<T, Cached>, T, float>;
  constexpr std::int64_t kPages = 6, kPageSize = 4;
  const auto elements = std::size_t(kPages * 2 * kPageSize * head_dim);
  const std::vector<std::int64_t> slots = {20, 21, 22, 23, 8, 9, 10, 11, 0};
  const std::int32_t first[] = {5}, second[] = {2, 0};
  for (Isa isa : supported_isas()) {
    if (!qkv_epilogue.row(isa)) continue;
    SCOPED_TRACE(isa_name(isa));
    Context context({.num_threads = 2, .isa = isa});
    std::vector<Cached> k_pages[2], v_pages[2];
    std::vector<T> out[2];
    for (int fused : {0, 1}) {
      k_pages[fused].assign(elements, rounded<Cached>(7.0f));
      v_pages[fused].assign(elements, rounded<Cached>(7.0f));
      const KvPages pages{TensorView(k_pages[fused].data(), kDType<Cached>, {kPages, 2, kPageSize, head_dim}),
                          TensorView(v_pages[fused].data(), kDType<Cached>, {kPages, 2, kPageSize, head_dim})};
      const PagedKvView cache{pages.k, pages.v, {{first, 1, 4}, {second, 2, 5}}};
      if (fused) {
        AttentionBlockOptions options = layer.options(&table);
        options.pages = &pages;
        options.slots = slots;
        options.cache = &cache;
        out[1].resize(std::size_t(layer.tokens * one.hidden));
        attention_block(context, layer.x_view(), layer.packed(context),
                        {out[1].data(), kDType<T>, {layer.tokens, one.hidden}}, options);
      } else {
        out[0] = layer.template unfused<Row>(context, &table, [&](auto q, auto k, auto v, auto attended) {
          kv_write(context, k, v, slots, pages);
          flash_attention_paged(context, q, cache, attended, one.offsets, {.mask = Mask::causal});
        });
      }
    }
    EXPECT_EQ(std::memcmp(k_pages[0].data(), k_pages[1].data(), elements * sizeof(Cached)), 0);
    EXPECT_EQ(std::memcmp(v_pages[0].data(), v_pages[1].data(), elements * sizeof(Cached)), 0);
    EXPECT_EQ(std::memcmp(out[0].data(), out[1].data(), out[0].size() * sizeof(T)), 0);
  }
}

TEST(AttentionBlockCache, HasTheBitsOfItsOperators) {
  for (auto [head_dim, rotary_dim] : {std::pair{64, 64}, {32, 16}}) {
    expect_bits_with_cache<float, float>(head_dim, rotary_dim);
    expect_bits_with_cache<float, BFloat16>(head_dim, rotary_dim);
    expect_bits_with_cache<BFloat16, BFloat16>(head_dim, rotary_dim);
    expect_bits_with_cache<Float16, BFloat16>(head_dim, rotary_dim);
  }
}

// What the profiler counts is what is moved: the qkv rows, rotated keys and the normalised rows of the unfused sum are
// gone.
TEST(AttentionBlockProfile, CountsFewerBytesThanTheUnfusedSum) {
  const Sublayer<float> layer({.shape = {4, 2, 64}, .rotary_dim = 64});
  const RopeTable table({.rotary_dim = 64});
  Context context({.num_threads = 1});
  const auto weights = layer.packed(context);
  const auto bytes = [](const Profiler& profiler) {
    std::int64_t total = 0;
    for (const auto& one : profiler.totals()) total += one.bytes;
    return total;
  };
  std::vector<float> out(layer.x.size());
  Profiler fused;
  context.set_profiler(&fused);
  attention_block(context, layer.x_view(), weights, {out.data(), DType::f32, {layer.tokens, 48}},
                  layer.options(&table));
  const std::int64_t tokens = layer.tokens, q = 4 * tokens * 4 * 64, kv = 4 * tokens * 2 * 2 * 64, x = 4 * tokens * 48;
  std::int64_t attention = 0;
  for (const auto& one : fused.totals()) {
    if (one.op.find("attention") != std::string::npos) attention += one.bytes;
  }
  // Reads x twice and the weights and gains; writes q, k, v, reads what attention wrote; writes out.
  EXPECT_EQ(bytes(fused) - attention, std::int64_t(weights.bytes()) + 4 * 48 + 3 * x + q + kv + q);
}

TEST(AttentionBlockErrors, NameTheArgument) {
  const Sublayer<float> layer({.shape = {2, 1, 64}, .rotary_dim = 64});
  Context context({.num_threads = 1});
  const auto weights = layer.packed(context);
  std::vector<float> out(layer.x.size(), 7.0f);
  const RopeTable table({.rotary_dim = 64}), wide({.rotary_dim = 128}),
      pairs({.rotary_dim = 64, .style = RopeStyle::interleaved});
  const TensorView y(out.data(), DType::f32, {9, 48});
  const auto message = [&](const AttentionBlockOptions& options) {
    return message_of([&] { attention_block(context, layer.x_view(), weights, y, options); });
  };
  AttentionBlockOptions options = layer.options(&table);
  options.positions.reset();
  EXPECT_EQ(message(options), "attention_block: rope and positions must both be given, or neither");
  EXPECT_EQ(message(layer.options(&wide)), "attention_block: rotary_dim is 128, must be at most head_dim = 64");
  EXPECT_NE(message(layer.options(&pairs)).find("style"), std::string::npos);
  const std::vector<std::int64_t> bad = {0, 5, 4, 9};
  options = layer.options(&table);
  options.offsets = bad;
  EXPECT_NE(message(options).find("offsets must start at 0"), std::string::npos);
  options = layer.options(&table);
  options.slots = bad;
  EXPECT_NE(message(options).find("pages, slots and cache"), std::string::npos);
  options = layer.options(&table);
  options.window = 0;
  EXPECT_NE(message(options).find("window is 0"), std::string::npos);
  options = layer.options(&table);
  options.norm->residual = layer.x_view();
  EXPECT_NE(message(options).find("norm.residual is given"), std::string::npos);
  EXPECT_EQ(out, std::vector<float>(out.size(), 7.0f));
  const auto pack = [&](const AttentionShape& shape) {
    return message_of([&] {
      AttentionWeights::pack(context, layer.matrix(layer.wq, 128), layer.matrix(layer.wk, 64),
                             layer.matrix(layer.wv, 64), layer.matrix(layer.wo, 48), shape);
    });
  };
  EXPECT_EQ(pack({2, 1, 64}), "");
  EXPECT_EQ(pack({2, 3, 64}), "AttentionWeights::pack: num_kv_heads is 3, must be a divisor of num_q_heads = 2");
  EXPECT_NE(pack({4, 1, 64}).find("wq must be [256, 48]"), std::string::npos);
  EXPECT_NE(pack({2, 1, 0}).find("head_dim is 0"), std::string::npos);
}

template <class T>
void check_ffn(std::int64_t tokens, bool norm, bool residual) {
  constexpr std::int64_t kHidden = 48, kIntermediate = 70;
  test::Random random(4);
  std::vector<T> x, gate, up, down;
  std::vector<float> gains;
  fill(x, std::size_t(tokens * kHidden), random, 1.0f);
  fill(gate, kIntermediate * kHidden, random, 0.2f);
  fill(up, kIntermediate * kHidden, random, 0.2f);
  fill(down, kIntermediate * kHidden, random, 0.2f);
  fill(gains, kHidden, random, 1.0f);
  const ConstTensorView x_view(x.data(), kDType<T>, {tokens, kHidden}), gain_view(gains.data(), DType::f32, {kHidden});
  for (Isa isa : supported_isas()) {
    SCOPED_TRACE(testing::Message() << isa_name(isa) << " tokens " << tokens << " norm " << norm);
    Context context({.num_threads = 2, .isa = isa});
    const auto gate_up =
        PackedWeights::pack_gate_up(context, ConstTensorView(gate.data(), kDType<T>, {kIntermediate, kHidden}),
                                    ConstTensorView(up.data(), kDType<T>, {kIntermediate, kHidden}));
    const auto packed_down =
        PackedWeights::pack(context, ConstTensorView(down.data(), kDType<T>, {kHidden, kIntermediate}));
    std::vector<T> gated(std::size_t(tokens * kIntermediate)), expected(x.size()), out(x.size());
    const TensorView gated_view(gated.data(), kDType<T>, {tokens, kIntermediate});
    if (norm) {
      std::vector<float> rows(x.size());
      const TensorView normal(rows.data(), DType::f32, {tokens, kHidden});
      rms_norm(context, x_view, gain_view, normal, {.eps = 1e-6f});
      gated_linear(context, normal, gate_up, gated_view, {.activation = Activation::gelu_tanh});
    } else {
      gated_linear(context, x_view, gate_up, gated_view, {.activation = Activation::gelu_tanh});
    }
    LinearOptions last{};
    FfnBlockOptions options{.residual_connection = residual, .activation = Activation::gelu_tanh};
    if (residual) last.residual = x_view;
    if (norm) options.norm = RowNorm{.weight = gain_view, .eps = 1e-6f};
    linear(context, gated_view, packed_down, {expected.data(), kDType<T>, {tokens, kHidden}}, last);
    ffn_block(context, x_view, gate_up, packed_down, {out.data(), kDType<T>, {tokens, kHidden}}, options);
    ASSERT_EQ(std::memcmp(out.data(), expected.data(), out.size() * sizeof(T)), 0);
  }
}

TEST(FfnBlock, HasTheBitsOfItsOperators) {
  for (std::int64_t tokens : {1, 7, 70}) {
    for (bool norm : {false, true}) {
      check_ffn<float>(tokens, norm, norm);
      check_ffn<BFloat16>(tokens, norm, true);
      check_ffn<Float16>(tokens, norm, !norm);
    }
  }
}

TEST(FfnBlockErrors, NameTheArgument) {
  Context context({.num_threads = 1});
  float w[32 * 16] = {}, x[32] = {}, out[32];
  const auto gate_up = PackedWeights::pack_gate_up(context, ConstTensorView(w, DType::f32, {32, 16}),
                                                   ConstTensorView(w, DType::f32, {32, 16}));
  const auto down = PackedWeights::pack(context, ConstTensorView(w, DType::f32, {16, 32})),
             wrong = PackedWeights::pack(context, ConstTensorView(w, DType::f32, {32, 16}));
  const ConstTensorView input(x, DType::f32, {2, 16});
  const TensorView y(out, DType::f32, {2, 16});
  EXPECT_EQ(message_of([&] { ffn_block(context, input, gate_up, down, y); }), "");
  EXPECT_EQ(message_of([&] { ffn_block(context, input, gate_up, wrong, y); }),
            "ffn_block: down is 32 x 16, must be 16 x 32");
  EXPECT_NE(message_of([&] { ffn_block(context, input, down, down, y); }).find("gate_up was packed"),
            std::string::npos);
  EXPECT_NE(message_of([&] { ffn_block(context, input, gate_up, down, {x, DType::f32, {2, 16}}); }).find("overlap"),
            std::string::npos);
}

}  // namespace
}  // namespace ops_transformer
