// SPDX-License-Identifier: Apache-2.0
#include "llm/model.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

#include "llm/llama_reference.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/tiny_llama.h"

namespace ops_transformer::llm {
namespace {

using test::TinyLlama;
using test::TinyLlamaOptions;

std::vector<TokenId> random_tokens(std::size_t count, std::uint64_t seed = 5) {
  std::mt19937_64 engine(seed);
  std::vector<TokenId> tokens(count);
  for (TokenId& token : tokens) token = TokenId(engine() % TinyLlama::kVocabSize);
  return tokens;
}

// Logits of every token of one sequence, read in chunks of the given sizes (the last one repeats).
std::vector<float> logits_in_chunks(Context& context, const Model& model, const std::vector<TokenId>& tokens,
                                    std::size_t chunk) {
  KvPool pool = model.make_kv_pool(std::int64_t(tokens.size()));
  const SequenceId sequence = pool.add_sequence();
  std::vector<float> logits;
  for (std::size_t begin = 0; begin < tokens.size(); begin += chunk) {
    const std::size_t count = std::min(chunk, tokens.size() - begin);
    const BatchSlice slice[] = {{sequence, std::int64_t(count)}};
    std::vector<std::int64_t> rows(count);
    std::iota(rows.begin(), rows.end(), 0);
    std::vector<float> part(count * TinyLlama::kVocabSize, NAN);
    model.forward(context, pool, {std::span(tokens).subspan(begin, count), slice, rows},
                  {part.data(), DType::f32, {std::int64_t(count), TinyLlama::kVocabSize}});
    logits.insert(logits.end(), part.begin(), part.end());
  }
  return logits;
}

double largest_difference(const std::vector<float>& logits, const std::vector<std::vector<double>>& expected) {
  double most = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const double difference =
        std::abs(double(logits[i]) - expected[i / TinyLlama::kVocabSize][i % TinyLlama::kVocabSize]);
    most = difference <= most ? most : difference;
    if (std::isnan(difference)) return NAN;
  }
  return most;
}

TEST(Model, ExactLogitsMatchTheDefinitionAtEveryLevel) {
  const TinyLlamaOptions variants[] = {{},
                                       {.tied = false, .bias = true, .rotary_dim = 8},
                                       {.window = 7, .linear_scaling = 4.0f, .frequency_factors = true},
                                       {.weights = DType::bf16},
                                       {.weights = DType::q4_0},
                                       {.weights = DType::q4_1, .tied = false},
                                       {.weights = DType::q8_0},
                                       {.scaling_type = "ntk"},
                                       {.scaling_type = "llama3"},
                                       {.scaling_type = "yarn"},
                                       {.architecture = "qwen2", .bias = true},
                                       {.architecture = "qwen2", .tied = false, .bias = true, .scaling_type = "yarn"},
                                       {.architecture = "qwen3", .weights = DType::q8_0},
                                       {.architecture = "gemma3", .window = 7},
                                       {.architecture = "gemma3", .window = 9, .linear_scaling = 8.0f}};
  for (const TinyLlamaOptions& options : variants) {
    const TinyLlama tiny(options);
    const auto tokens = random_tokens(33);
    for (Isa isa : supported_isas()) {
      SCOPED_TRACE(fmt::format("{} {} {} {}", isa_name(isa), options.architecture, dtype_name(options.weights),
                               options.scaling_type));
      Context context({.num_threads = 2, .isa = isa});
      const auto model = load_model(context, tiny.path(), {.arithmetic = Arithmetic::exact});
      const auto expected = reference::llama_logits(model->config(), tiny.tensors(), tokens);
      for (std::size_t chunk : {33, 8, 1}) {
        EXPECT_LE(largest_difference(logits_in_chunks(context, *model, tokens, chunk), expected), 2e-5) << chunk;
      }
    }
  }
}

TEST(Model, DeterministicBitsDependOnNothingElse) {
  const TinyLlamaOptions variants[] = {{.weights = DType::q4_1},
                                       {.architecture = "gemma3", .weights = DType::q8_0, .window = 11}};
  for (const auto& [arithmetic, options] :
       {std::pair{Arithmetic::fast, variants[0]}, {Arithmetic::exact, variants[0]}, {Arithmetic::fast, variants[1]}}) {
    const TinyLlama tiny(options);
    const auto tokens = random_tokens(100);
    std::vector<float> first;
    for (int threads : {1, 2, 3}) {
      Context context({.num_threads = threads, .deterministic = true});
      const auto model = load_model(context, tiny.path(), {.arithmetic = arithmetic});
      for (std::size_t chunk : {100, 37, 16, 1}) {
        const auto logits = logits_in_chunks(context, *model, tokens, chunk);
        if (first.empty()) first = logits;
        EXPECT_EQ(std::memcmp(first.data(), logits.data(), first.size() * sizeof(float)), 0)
            << threads << " threads, chunks of " << chunk;
      }
    }
  }
}

// The first sequence's logits are the same with neighbours in the batch, whatever they do.
TEST(Model, BatchNeighboursDoNotMatter) {
  const TinyLlama tiny({.weights = DType::q8_0});
  Context context({.num_threads = 2, .deterministic = true});
  const auto model = load_model(context, tiny.path());
  const auto tokens = random_tokens(20), others = random_tokens(31, 6);
  const auto alone = logits_in_chunks(context, *model, tokens, 20);
  KvPool pool = model->make_kv_pool(200, 3);
  const SequenceId a = pool.add_sequence(), b = pool.add_sequence();
  std::vector<TokenId> packed = others;
  packed.insert(packed.end(), tokens.begin(), tokens.end());
  const BatchSlice slices[] = {{a, 31}, {b, 20}};
  std::vector<std::int64_t> rows(20);
  std::iota(rows.begin(), rows.end(), 31);
  std::vector<float> logits(20 * TinyLlama::kVocabSize);
  model->forward(context, pool, {packed, slices, rows}, {logits.data(), DType::f32, {20, TinyLlama::kVocabSize}});
  EXPECT_EQ(std::memcmp(alone.data(), logits.data(), logits.size() * sizeof(float)), 0);
}

TEST(Model, RefusesABadBatchBeforeWriting) {
  const TinyLlama tiny;
  Context context({.num_threads = 1});
  const auto model = load_model(context, tiny.path());
  KvPool pool = model->make_kv_pool(64);
  const SequenceId sequence = pool.add_sequence();
  float logits[TinyLlama::kVocabSize];
  const auto forward = [&](std::vector<TokenId> tokens, std::int64_t slice_tokens) {
    const BatchSlice slices[] = {{sequence, slice_tokens}};
    const std::int64_t rows[] = {0};
    model->forward(context, pool, {tokens, slices, rows}, {logits, DType::f32, {1, TinyLlama::kVocabSize}});
  };
  EXPECT_THROW(forward({TinyLlama::kVocabSize}, 1), InvalidArgument);
  EXPECT_THROW(forward({-1}, 1), InvalidArgument);
  EXPECT_THROW(forward({1, 2}, 1), InvalidArgument);
  EXPECT_THROW(forward(random_tokens(1000), 1000), ResourceExhausted);
  EXPECT_EQ(pool.length(sequence), 0);
  forward({1, 2}, 2);
  EXPECT_EQ(pool.length(sequence), 2);
}

// What a forward throws at any point leaves sequences as they were.
TEST(Model, AFailedForwardTakesItsTokensBack) {
  const TinyLlama tiny;
  Context context({.num_threads = 1});
  const auto model = load_model(context, tiny.path());
  float logits[TinyLlama::kVocabSize];
  const auto forward = [&](KvPool& pool, const std::vector<BatchSlice>& slices, std::int64_t num_tokens) {
    const std::int64_t rows[] = {0};
    model->forward(context, pool, {random_tokens(std::size_t(num_tokens)), slices, rows},
                   {logits, DType::f32, {1, TinyLlama::kVocabSize}});
  };
  KvPool pool = model->make_kv_pool(64, 2);
  const SequenceId a = pool.add_sequence(), b = pool.add_sequence();
  forward(pool, {{a, 3}}, 3);
  EXPECT_THROW(forward(pool, {{a, 1}, {a, 1}}, 2), InvalidArgument);
  EXPECT_THROW(forward(pool, {{a, 1}, {b, 1000}}, 1001), ResourceExhausted);
  EXPECT_THROW(forward(pool, {{a, 1}, {b + 1, 1}}, 2), InvalidArgument);
  EXPECT_THROW(forward(pool, {{a, INT64_MAX}, {b, INT64_MAX}}, 2), InvalidArgument);
  EXPECT_EQ(pool.length(a), 3);
  EXPECT_EQ(pool.length(b), 0);
  // A pool that fits the first layer only: the second one fails when the tokens are in.
  KvPoolOptions options = pool.options();
  options.num_layers = 1;
  KvPool shallow(options);
  const SequenceId only = shallow.add_sequence();
  EXPECT_THROW(forward(shallow, {{only, 5}}, 5), InvalidArgument);
  EXPECT_EQ(shallow.length(only), 0);
  EXPECT_EQ(shallow.num_free_pages(), options.num_pages);
}

TEST(Model, RefusesAnImpossibleCache) {
  const TinyLlama tiny;
  Context context({.num_threads = 1});
  const auto model = load_model(context, tiny.path());
  for (std::int64_t num_tokens : {std::int64_t{0}, std::int64_t{-1}, INT64_MAX}) {
    EXPECT_THROW(model->make_kv_pool(num_tokens), InvalidArgument) << num_tokens;
  }
  EXPECT_THROW(model->make_kv_pool(1, 0), InvalidArgument);
}

// A file whose tensors are not those of the model that it describes.
TEST(Model, RefusesForeignTensors) {
  Context context({.num_threads = 1});
  const auto message = [&](const TinyLlamaOptions& options) -> std::string {
    const TinyLlama tiny(options);
    try {
      load_model(context, tiny.path());
    } catch (const InvalidFile& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(message({}), "");
  EXPECT_EQ(message({.num_dims = 3}), "tensor token_embd.weight has 3 dimensions, must have at most 2");
  EXPECT_EQ(message({.num_dims = 4}), "tensor token_embd.weight has 4 dimensions, must have at most 2");
  EXPECT_EQ(message({.extra_tensor = "blk.0.ffn_gate.bias"}), "tensor blk.0.ffn_gate.bias has no place in this model");
  EXPECT_EQ(message({.extra_tensor = "blk.2.attn_norm.weight"}),
            "tensor blk.2.attn_norm.weight has no place in this model");
  EXPECT_NE(message({.linear_scaling = 1e-9f}).find("position_scale"), std::string::npos);
}

// Types, sizes and architectures that are none, and tensors of the wrong shape: the message says what and where.
TEST(Config, SaysWhatIsWrong) {
  const auto message = [](auto&& change) -> std::string {
    test::GgufWriter writer;
    change(writer);
    const test::AlignedBytes bytes(writer.bytes());
    try {
      read_config(ModelFile::from_memory(bytes.span()));
    } catch (const InvalidFile& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(message([](auto& w) { w.add_string("general.architecture", "qwen3moe"); }),
            "unsupported architecture 'qwen3moe'; supported: llama, qwen2, qwen3, gemma3");
  EXPECT_EQ(
      message([](auto& w) { w.add_string("general.architecture", "\x1b[2J\xff" + std::string(1 << 20, 'x')); }),
      "unsupported architecture '\\x1b[2J\ufffd" + std::string(90, 'x') + "…'; supported: llama, qwen2, qwen3, gemma3");
  const auto gemma = [](test::GgufWriter& w) -> auto& {
    return w.add_string("general.architecture", "gemma3")
        .add_u32("gemma3.block_count", 1)
        .add_u32("gemma3.embedding_length", 8)
        .add_u32("gemma3.feed_forward_length", 8)
        .add_u32("gemma3.attention.head_count", 2)
        .add_u32("gemma3.context_length", 8);
  };
  EXPECT_EQ(message([&](auto& w) { gemma(w).add_f32("gemma3.final_logit_softcapping", 30.0f); }),
            "gemma3.final_logit_softcapping is '30', which is not supported; supported: 0");
  EXPECT_EQ(
      message([&](auto& w) { gemma(w).add_string("gemma3.rope.scaling.type", "longrope"); }),
      "gemma3.rope.scaling.type is 'longrope', which is not supported; supported: none, linear, ntk, llama3, yarn");
  const auto with_sizes = [](test::GgufWriter& w, std::uint32_t heads, std::uint32_t vocab) {
    w.add_string("general.architecture", "llama").add_u32("llama.block_count", 1).add_u32("llama.embedding_length", 8);
    w.add_u32("llama.feed_forward_length", 8)
        .add_u32("llama.attention.head_count", heads)
        .add_u32("llama.context_length", 8);
    w.add_u32("llama.vocab_size", vocab).add_tensor("token_embd.weight", DType::f32, {2, 8}, std::string(64, '\0'));
  };
  EXPECT_EQ(message([&](auto& w) { with_sizes(w, 2, 2); }), "");
  EXPECT_EQ(message([&](auto& w) { with_sizes(w, 2, 3); }), "llama.vocab_size is 3, but token_embd.weight has 2 rows");
  EXPECT_NE(message([&](auto& w) { with_sizes(w, 3, 2); }).find("must be a multiple of"), std::string::npos);
  EXPECT_NE(message([&](auto& w) { with_sizes(w, 0, 2); }).find("head_count is 0"), std::string::npos);
}

}  // namespace
}  // namespace ops_transformer::llm
