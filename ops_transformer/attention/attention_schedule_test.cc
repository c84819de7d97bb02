// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/attention/attention_schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "tests/support/random.h"

namespace ops_transformer {
namespace {

DeviceSpec made_up_device() {
  DeviceSpec device = device_spec_of(Isa::avx512_bf16);
  device.l2_bytes = std::size_t{1} << 20;
  return device;
}

constexpr AttentionProblem kSmolLm{9, 3, 64, 64, DType::bf16};

AttentionArgs args_of(const AttentionProblem& problem) {
  AttentionArgs args{};
  args.head_dim = problem.head_dim;
  args.value_dim = problem.value_dim;
  args.group = problem.num_q_heads / problem.num_kv_heads;
  return args;
}

constexpr std::int64_t kNone = std::int64_t{1} << 40;

AttentionSequence sequence_of(std::int64_t q_len, std::int64_t kv_len, std::int64_t window_left,
                              std::int64_t window_right) {
  AttentionSequence sequence{};
  sequence.q_len = q_len;
  sequence.kv_len = kv_len;
  sequence.first_position = kv_len - q_len;
  sequence.window_left = window_left;
  sequence.window_right = window_right;
  return sequence;
}

TEST(AttentionPlan, IsAFunctionOfProblemDeviceAndPolicy) {
  const AttentionPlan bf16 = plan(kSmolLm, made_up_device(), {2, false});
  EXPECT_TRUE(bf16.bf16_dot && bf16.decode_rows && bf16.split_keys);
  EXPECT_EQ(bf16.block_rows, 64);
  EXPECT_GT(bf16.blocks_per_item, 1);
  EXPECT_LE(bf16.scratch_bytes, made_up_device().l2_bytes);
  const AttentionPlan exact = plan(kSmolLm, made_up_device(), {2, true});
  EXPECT_FALSE(exact.decode_rows || exact.split_keys);
  EXPECT_EQ(exact.key_tile, bf16.key_tile);
  const AttentionPlan avx2 = plan(kSmolLm, device_spec_of(Isa::avx2), {2, false});
  EXPECT_FALSE(avx2.bf16_dot);
  EXPECT_EQ(avx2.block_rows, 16);
  EXPECT_NE(describe(bf16), describe(exact));
  for (const auto& [asked, tile] : {std::pair{1, 16}, {16, 16}, {100, 112}, {256, 256}, {100000, 256}}) {
    const AttentionPlan overridden = plan(kSmolLm, made_up_device(), {2, false, asked});
    EXPECT_EQ(overridden.key_tile, tile);
    EXPECT_LE(overridden.scratch_bytes, made_up_device().l2_bytes);
  }
  // The widest rows there are still have room for one block.
  EXPECT_GE(plan({1, 1, 768, 768, DType::f32}, made_up_device(), {2, false}).blocks_per_item, 1);
}

// Every row and key that is seen is covered once, whatever the lengths, threads and masks.
TEST(AttentionSchedule, CoversEveryRowAndKeyOnce) {
  test::Random random(3);
  for (int round = 0; round < 200; ++round) {
    const AttentionProblem problem{int(random.integer(1, 4)) * 6, 6, 64, 64, DType::bf16};
    const int num_threads = int(random.integer(1, 9));
    const bool deterministic = random.integer(0, 3) == 0;
    const AttentionPlan chosen = plan(problem, made_up_device(), {num_threads, deterministic});
    const AttentionArgs args = args_of(problem);
    const std::int64_t left = random.integer(0, 1) ? kNone : random.integer(0, 3000);
    const std::int64_t right = random.integer(0, 1) ? 0 : kNone;
    std::vector<AttentionSequence> sequences;
    for (std::int64_t n = random.integer(0, 4); n > 0; --n) {
      sequences.push_back(
          sequence_of(random.integer(0, 2) ? 1 : random.integer(0, 400), random.integer(0, 5000), left, right));
    }
    Arena arena;
    const AttentionSchedule work = schedule(chosen, args, problem.num_kv_heads, {sequences, {}}, num_threads, arena);
    // By sequence, head and first row: the key ranges of its parts.
    std::map<std::tuple<int, int, std::int64_t>, std::vector<const AttentionItem*>> groups;
    std::int64_t partial_rows = 0;
    for (const AttentionItem& item : work.items) {
      groups[{item.sequence, item.kv_head, item.first_row}].push_back(&item);
      const std::int64_t num_rows = item.last_row - item.first_row;
      ASSERT_GT(num_rows, 0);
      ASSERT_LE(num_rows, std::int64_t{chosen.blocks_per_item} * chosen.block_rows);
      if (item.partial >= 0) {
        ASSERT_FALSE(deterministic);
        ASSERT_EQ(item.first_key % chosen.key_tile, 0);
        ASSERT_LE(item.partial + num_rows, work.num_partial_rows);
        partial_rows += num_rows;
      }
    }
    ASSERT_EQ(partial_rows, work.num_partial_rows);
    std::map<std::pair<int, int>, std::int64_t> rows;
    for (const auto& [key, parts] : groups) {
      const auto& [sequence, head, first_row] = key;
      rows[{sequence, head}] += parts[0]->last_row - first_row;
      const bool split = parts[0]->partial >= 0;
      ASSERT_EQ(split, parts.size() > 1);
      ASSERT_EQ(parts.back()->last_key, sequences[std::size_t(sequence)].kv_len);
      for (std::size_t i = 1; i < parts.size(); ++i) {
        ASSERT_EQ(parts[i]->first_key, parts[i - 1]->last_key);
        ASSERT_EQ(parts[i]->partial, parts[i - 1]->partial + parts[0]->last_row - first_row);
      }
      if (!split) {
        ASSERT_EQ(parts[0]->first_key, 0);
        continue;
      }
      const auto merge = std::ranges::find_if(work.merges, [&, s = sequence, h = head, f = first_row](const auto& m) {
        return m.sequence == s && m.kv_head == h && m.first_row == f;
      });
      ASSERT_NE(merge, work.merges.end());
      ASSERT_EQ(merge->num_parts, int(parts.size()));
      ASSERT_EQ(merge->first_partial, parts[0]->partial);
    }
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      for (int head = 0; head < problem.num_kv_heads; ++head) {
        ASSERT_EQ((rows[{int(i), head}]), sequences[i].q_len * args.group);
      }
    }
  }
}

// Three key heads over two threads: neither decode nor prefill leaves one of them idle.
TEST(AttentionSchedule, SharesAFewHeadsAmongThreads) {
  const AttentionPlan chosen = plan(kSmolLm, made_up_device(), {2, false});
  const AttentionArgs args = args_of(kSmolLm);
  Arena arena;
  const std::vector<AttentionSequence> decode = {sequence_of(1, 4096, kNone, 0)},
                                       prefill = {sequence_of(512, 512, kNone, 0)};
  const AttentionSchedule parts = schedule(chosen, args, 3, {decode, {}}, 2, arena);
  EXPECT_EQ(parts.items.size() % 2, 0u);
  std::int64_t longest = 0;
  for (const AttentionItem& item : parts.items) longest = std::max(longest, item.last_key - item.first_key);
  EXPECT_LE(double(longest) * double(parts.items.size()), 1.15 * 3 * 4096);
  const AttentionSchedule blocks = schedule(chosen, args, 3, {prefill, {}}, 2, arena);
  const auto cost = [](const AttentionItem& item) { return (item.last_row - item.first_row) * item.last_row; };
  std::int64_t total = 0;
  for (const AttentionItem& item : blocks.items) total += cost(item);
  EXPECT_LE(cost(blocks.items.back()), total / 20);
  EXPECT_TRUE(blocks.merges.empty());
}

}  // namespace
}  // namespace ops_transformer
