// SPDX-License-Identifier: Apache-2.0
#include "llm/engine.h"

#include <gtest/gtest.h>

#include <numeric>

#include "llm/llama_unfused.h"
#include "llm/perplexity.h"
#include "tests/support/tiny_llama.h"

namespace ops_transformer::llm {
namespace {

using test::TinyLlama;

class EngineTest : public testing::Test {
 protected:
  EngineTest() : context_({.num_threads = 2, .deterministic = true}), model_(load_model(context_, tiny_.path())) {}

  GenerateRequest request(std::size_t prompt_len, std::int64_t max_tokens, std::uint64_t first = 1) const {
    GenerateRequest request;
    for (std::size_t i = 0; i < prompt_len; ++i) request.prompt.push_back(TokenId((first + i * 7) % 90));
    request.options = {.max_tokens = max_tokens, .ignore_eos = true};
    return request;
  }
  // Runs all requests to their ends; the events' texts, joined, of each.
  std::vector<std::string> run(KvPool& pool, const std::vector<GenerateRequest>& requests, Generation::Options options,
                               std::vector<GenerateResult>* results = nullptr) {
    Generation generation(context_, *model_, pool, requests, options);
    std::vector<std::string> texts(requests.size());
    while (!generation.done()) {
      for (const TextEvent& event : generation.step()) texts[event.request] += event.text;
    }
    for (std::size_t i = 0; results && i < requests.size(); ++i) results->push_back(generation.result(i));
    return texts;
  }

  TinyLlama tiny_{{.weights = DType::q8_0, .seed = 3}};
  Context context_;
  std::unique_ptr<Model> model_;
};

TEST_F(EngineTest, BatchAndChunksGiveTheSameTokens) {
  const std::vector<GenerateRequest> requests = {request(40, 20), request(3, 30, 5), request(17, 1, 9)};
  KvPool pool = model_->make_kv_pool(400, 3);
  std::vector<GenerateResult> together, chunked, alone;
  const auto texts = run(pool, requests, {}, &together);
  run(pool, requests, {.prefill_chunk = 8}, &chunked);
  for (const GenerateRequest& one : requests) run(pool, {one}, {}, &alone);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(together[i].tokens.size(), std::size_t(requests[i].options.max_tokens));
    EXPECT_EQ(together[i].tokens, chunked[i].tokens);
    EXPECT_EQ(together[i].tokens, alone[i].tokens);
    EXPECT_EQ(together[i].finish, FinishReason::length);
    EXPECT_EQ(texts[i], together[i].text);
  }
  EXPECT_EQ(pool.num_sequences(), 0);
}

// A prompt that fills the context is refused with both counts; an answer ends where the context
// does.
TEST_F(EngineTest, ContextEnds) {
  KvPool pool = model_->make_kv_pool(128);
  for (std::size_t prompt_len : {64, 65}) {
    try {
      run(pool, {request(prompt_len, 1)}, {.context_len = 64});
      ADD_FAILURE() << prompt_len << " tokens were accepted";
    } catch (const InvalidArgument& error) {
      EXPECT_NE(std::string(error.what()).find(std::to_string(prompt_len) + " tokens, the context holds 64"),
                std::string::npos);
    }
  }
  std::vector<GenerateResult> results;
  run(pool, {request(63, 10)}, {.context_len = 64}, &results);
  run(pool, {request(60, 100)}, {.context_len = 64}, &results);
  EXPECT_EQ(results[0].tokens.size(), 1u);
  EXPECT_EQ(results[1].tokens.size(), 4u);
  EXPECT_EQ(results[1].finish, FinishReason::length);
}

TEST_F(EngineTest, StopStringEndsTheAnswer) {
  KvPool pool = model_->make_kv_pool(128);
  std::vector<GenerateResult> plain, stopped;
  run(pool, {request(9, 30)}, {}, &plain);
  ASSERT_GE(plain[0].text.size(), 8u);
  GenerateRequest with_stop = request(9, 30);
  with_stop.options.stop = {plain[0].text.substr(4, 3)};
  const auto texts = run(pool, {with_stop}, {}, &stopped);
  EXPECT_EQ(stopped[0].finish, FinishReason::stop_string);
  EXPECT_EQ(stopped[0].text, plain[0].text.substr(0, plain[0].text.find(with_stop.options.stop[0])));
  EXPECT_EQ(texts[0], stopped[0].text);
}

TEST_F(EngineTest, CancelAndContinueASequence) {
  KvPool pool = model_->make_kv_pool(200, 2);
  std::vector<GenerateResult> whole;
  run(pool, {request(12, 10)}, {}, &whole);
  // The same twelve tokens in two requests on one sequence.
  const SequenceId sequence = pool.add_sequence();
  GenerateRequest first = request(12, 1), second = request(12, 10);
  first.prompt.resize(5);
  first.sequence = second.sequence = sequence;
  run(pool, {first}, {});
  EXPECT_EQ(pool.length(sequence), 5);
  second.prompt.erase(second.prompt.begin(), second.prompt.begin() + 5);
  std::vector<GenerateResult> continued;
  run(pool, {second}, {}, &continued);
  EXPECT_EQ(continued[0].tokens, whole[0].tokens);

  Generation generation(context_, *model_, pool, {request(12, 100)}, {});
  generation.step();
  generation.cancel(0);
  const auto events = generation.step();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].finish, FinishReason::cancelled);
  EXPECT_TRUE(generation.done());
}

// Two requests that a pool has no room for fail as often as they are tried, and answer as ever once there is room.
TEST_F(EngineTest, AFailedStepCanBeTriedAgain) {
  KvPool large = model_->make_kv_pool(400, 3);
  std::vector<GenerateResult> expected;
  run(large, {request(70, 5), request(60, 5, 9)}, {}, &expected);
  KvPool pool = model_->make_kv_pool(128, 1);  // three pages
  const SequenceId other = pool.add_sequence();
  std::int64_t slots[64];
  pool.append(other, slots);
  Generation generation(context_, *model_, pool, {request(70, 5), request(60, 5, 9)}, {});
  EXPECT_THROW(generation.step(), ResourceExhausted);
  EXPECT_THROW(generation.step(), ResourceExhausted);
  pool.remove_sequence(other);
  while (!generation.done()) generation.step();
  for (std::size_t i = 0; i < 2; ++i) EXPECT_EQ(generation.result(i).tokens, expected[i].tokens);
}

TEST_F(EngineTest, LogitsThatAreNotNumbers) {
  const TinyLlama tiny({.nan_embedding = true});
  const auto model = load_model(context_, tiny.path());
  KvPool pool = model->make_kv_pool(64);
  const SequenceId sequence = pool.add_sequence();
  GenerateRequest asked = request(5, 5);
  asked.sequence = sequence;
  Generation generation(context_, *model, pool, {asked}, {});
  for (int i = 0; i < 2; ++i) {
    EXPECT_THROW(generation.step(), InvalidFile);
    EXPECT_EQ(pool.length(sequence), 0);
  }
  EXPECT_THROW(perplexity(context_, *model, std::vector<TokenId>(100, 3), {.context_len = 16}), InvalidFile);
}

TEST_F(EngineTest, CacheTokens) {
  EXPECT_EQ(cache_tokens(*model_, std::vector{request(10, 5), request(7, INT64_MAX)}, 64), 15 + 64);
  EXPECT_EQ(cache_tokens(*model_, std::vector{request(10, INT64_MAX), request(7, INT64_MAX)}), 2 * 256);
  EXPECT_THROW(cache_tokens(*model_, {}), InvalidArgument);
  EXPECT_THROW(cache_tokens(*model_, std::vector{request(10, 0)}), InvalidArgument);
  for (std::int64_t context_len : {std::int64_t{-1}, std::int64_t{257}, INT64_MAX}) {
    EXPECT_THROW(cache_tokens(*model_, std::vector{request(10, 5)}, context_len), InvalidArgument) << context_len;
  }
}

TEST_F(EngineTest, UnfusedContextIsChecked) {
  for (std::int64_t context_len : {std::int64_t{0}, std::int64_t{257}, std::int64_t{1} << 58}) {
    EXPECT_THROW(UnfusedLlama::load(context_, tiny_.path(), context_len), InvalidArgument) << context_len;
  }
}

TEST_F(EngineTest, RefusesBadRequests) {
  KvPool pool = model_->make_kv_pool(64);
  EXPECT_THROW(run(pool, {request(0, 1)}, {}), InvalidArgument);
  EXPECT_THROW(run(pool, {request(1, 0)}, {}), InvalidArgument);
  GenerateRequest bad = request(1, 1);
  bad.options.sampler.temperature = -1.0f;
  EXPECT_THROW(run(pool, {bad}, {}), InvalidArgument);
  EXPECT_EQ(pool.num_sequences(), 0);
}

}  // namespace
}  // namespace ops_transformer::llm
