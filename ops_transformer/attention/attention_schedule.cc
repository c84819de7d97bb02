// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/attention/attention_schedule.h"

#include <algorithm>

namespace ops_transformer {
namespace {

struct Keys {
  std::int64_t first, last;
};

// Keys that some query of [first_query, last_query] sees; 0, 0 for none.
Keys keys_of(const AttentionArgs& args, const AttentionSequence& sequence, std::int64_t first_query,
             std::int64_t last_query) {
  const std::int64_t shift = sequence.kv_len - sequence.q_len, most = sequence.kv_len;
  const std::int64_t low = first_query + shift, high = last_query + shift;
  const std::int64_t first = low > args.window_left ? low - args.window_left : 0;
  const std::int64_t last = args.window_right < most - high ? high + args.window_right + 1 : most;
  return first < last ? Keys{first, std::min(last, most)} : Keys{0, 0};
}

bool takes_decode(const AttentionPlan& plan, const AttentionArgs& args, const AttentionSequence& sequence) {
  return plan.decode_rows && sequence.q_len == 1 && args.group <= kMaxDecodeRows;
}

Keys keys_of_block(const AttentionPlan& plan, const AttentionArgs& args, const AttentionSequence& sequence,
                   std::int64_t block) {
  const std::int64_t last_row = std::min((block + 1) * plan.block_rows, sequence.q_len * args.group) - 1;
  return keys_of(args, sequence, block * plan.block_rows / args.group, last_row / args.group);
}

std::int64_t num_blocks(const AttentionPlan& plan, const AttentionArgs& args, const AttentionSequence& sequence) {
  return (sequence.q_len * args.group + plan.block_rows - 1) / plan.block_rows;
}

double decode_cost(const AttentionPlan& plan, const AttentionArgs& args, std::int64_t num_keys) {
  return plan.decode_cost * double((args.group + 3) / 4) * double(num_keys);
}

double total_cost(const AttentionPlan& plan, const AttentionArgs& args, const AttentionSequence& sequence) {
  if (takes_decode(plan, args, sequence)) {
    const Keys keys = keys_of(args, sequence, 0, 0);
    return decode_cost(plan, args, keys.last - keys.first);
  }
  double cost = 0;
  for (std::int64_t block = 0; block < num_blocks(plan, args, sequence); ++block) {
    const Keys keys = keys_of_block(plan, args, sequence, block);
    cost += plan.tile_cost * double(keys.last - keys.first);
  }
  return cost;
}

// Counts in a first pass, fills in a second.
struct Sink {
  AttentionItem* items = nullptr;
  AttentionMerge* merges = nullptr;
  std::size_t num_items = 0, num_merges = 0;
  std::int64_t num_partial_rows = 0;

  void add(const AttentionItem& item) {
    if (items) items[num_items] = item;
    ++num_items;
  }
  void add(const AttentionMerge& merge) {
    if (merges) merges[num_merges] = merge;
    ++num_merges;
  }
};

// Rows that see `keys`: one item, or as many parts of them as their cost is worth.
void add_rows(const AttentionPlan& plan, AttentionItem item, Keys keys, double cost, double target, Sink& sink) {
  const std::int64_t num_keys = keys.last - keys.first;
  std::int64_t num_parts = 1;
  if (plan.split_keys && cost > 1.5 * target) {
    num_parts = std::min({std::int64_t(cost / target) + 1, num_keys / plan.split_len, std::int64_t{kMaxParts}});
  }
  if (num_parts <= 1) {
    item.first_key = 0;
    item.partial = -1;
    sink.add(item);
    return;
  }
  const std::int64_t step = (num_keys / num_parts + plan.key_tile) / plan.key_tile * plan.key_tile;
  const std::int64_t begin = keys.first / plan.key_tile * plan.key_tile, end = item.last_key;
  num_parts = (keys.last - begin + step - 1) / step;
  const std::int64_t num_rows = item.last_row - item.first_row;
  sink.add(
      AttentionMerge{item.sequence, item.kv_head, item.first_row, num_rows, sink.num_partial_rows, int(num_parts)});
  for (std::int64_t part = 0; part < num_parts; ++part) {
    item.first_key = begin + part * step;
    item.last_key = part + 1 == num_parts ? end : item.first_key + step;
    item.partial = sink.num_partial_rows;
    sink.num_partial_rows += num_rows;
    sink.add(item);
  }
}

void add_sequence(const AttentionPlan& plan, const AttentionArgs& args, int num_kv_heads,
                  std::span<const AttentionSequence> sequences, std::int32_t index, double target, Sink& sink) {
  const AttentionSequence& sequence = sequences[std::size_t(index)];
  const std::int64_t num_rows = sequence.q_len * args.group;
  AttentionItem item{index, 0, 0, num_rows, 0, sequence.kv_len, -1};
  if (takes_decode(plan, args, sequence)) {
    const Keys keys = keys_of(args, sequence, 0, 0);
    const double cost = decode_cost(plan, args, keys.last - keys.first);
    for (item.kv_head = 0; item.kv_head < num_kv_heads; ++item.kv_head) {
      add_rows(plan, item, keys, cost, target, sink);
    }
    return;
  }
  // From the last rows to the first, which under a causal mask is from the longest to the shortest.
  for (std::int64_t end = num_blocks(plan, args, sequence); end > 0;) {
    std::int64_t begin = end;
    double cost = 0;
    Keys keys{0, 0};
    while (begin > 0 && end - begin < plan.blocks_per_item) {
      keys = keys_of_block(plan, args, sequence, begin - 1);
      const double block_cost = plan.tile_cost * double(keys.last - keys.first);
      if (begin < end && cost + block_cost > target) break;
      cost += block_cost;
      --begin;
    }
    if (end - begin > 1) cost = 0;  // several blocks are not split
    item.first_row = begin * plan.block_rows;
    item.last_row = std::min(num_rows, end * plan.block_rows);
    for (item.kv_head = 0; item.kv_head < num_kv_heads; ++item.kv_head) {
      add_rows(plan, item, keys, cost, target, sink);
    }
    end = begin;
  }
}

}  // namespace

AttentionSchedule schedule(const AttentionPlan& plan, const AttentionArgs& args, int num_kv_heads,
                           std::span<const AttentionSequence> sequences, int num_threads, Arena& arena) {
  double cost = 0;
  for (const AttentionSequence& sequence : sequences) cost += total_cost(plan, args, sequence) * num_kv_heads;
  const double target = cost / double(num_threads * plan.items_per_thread);
  const auto pass = [&](Sink& sink) {
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      add_sequence(plan, args, num_kv_heads, sequences, std::int32_t(i), target, sink);
    }
  };
  Sink count;
  pass(count);
  AttentionSchedule result{arena.allocate<AttentionItem>(count.num_items),
                           arena.allocate<AttentionMerge>(count.num_merges), count.num_partial_rows};
  Sink fill{.items = result.items.data(), .merges = result.merges.data()};
  pass(fill);
  return result;
}

}  // namespace ops_transformer
