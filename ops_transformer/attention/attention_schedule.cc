// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/attention/attention_schedule.h"

#include <algorithm>

namespace ops_transformer {
namespace {

// KeyRange that some query of [first_query, last_query] sees; 0, 0 for none.
KeyRange keys_of(const AttentionSequence& sequence, std::int64_t first_query, std::int64_t last_query) {
  const std::int64_t first = keys_seen(sequence, first_query, 0, sequence.kv_len).first;
  const std::int64_t last = keys_seen(sequence, last_query, 0, sequence.kv_len).last;
  return first < last ? KeyRange{first, last} : KeyRange{0, 0};
}

bool takes_decode(const AttentionPlan& plan, const AttentionArgs& args, const AttentionSequence& sequence) {
  return plan.decode_rows && sequence.q_len == 1 && !args.rope && !args.dropout.data && !args.seed.any;
}

KeyRange keys_of_block(const AttentionPlan& plan, const AttentionArgs& args, const AttentionSequence& sequence,
                       std::int64_t block) {
  const std::int64_t last_row = std::min((block + 1) * plan.block_rows, sequence.q_len * args.group) - 1;
  return keys_of(sequence, block * plan.block_rows / args.group, last_row / args.group);
}

std::int64_t num_blocks(const AttentionPlan& plan, const AttentionArgs& args, const AttentionSequence& sequence) {
  return (sequence.q_len * args.group + plan.block_rows - 1) / plan.block_rows;
}

double decode_cost(const AttentionPlan& plan, const AttentionArgs& args, std::int64_t num_keys) {
  return plan.decode_cost * double((args.group + 3) / 4) * double(num_keys);
}

double total_cost(const AttentionPlan& plan, const AttentionArgs& args, const AttentionSequence& sequence) {
  if (takes_decode(plan, args, sequence)) {
    const KeyRange keys = keys_of(sequence, 0, 0);
    return decode_cost(plan, args, keys.last - keys.first);
  }
  double cost = 0;
  for (std::int64_t block = 0; block < num_blocks(plan, args, sequence); ++block) {
    const KeyRange keys = keys_of_block(plan, args, sequence, block);
    cost += plan.tile_cost * double(keys.last - keys.first);
  }
  return cost;
}

// Of one of the sequences that share a prefix: what is left to it.
AttentionSequence beyond(const AttentionSequence& sequence, const SharedPrefix& prefix) {
  AttentionSequence rest = sequence;
  rest.kv_len -= prefix.len;
  rest.first_position -= prefix.len;
  return rest;
}

double prefix_cost(const AttentionPlan& plan, const AttentionArgs& args, const AttentionSequence& together) {
  return plan.tile_cost * double(together.kv_len) * double(num_blocks(plan, args, together));
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

class Cutter {
 public:
  Cutter(const AttentionPlan& plan, const AttentionArgs& args, int num_kv_heads, int num_threads, double cost,
         Sink& sink)
      : plan_(plan),
        args_(args),
        num_kv_heads_(num_kv_heads),
        num_threads_(num_threads),
        left_(cost),
        equal_share_(cost / double(num_threads * plan.items_per_thread)),
        sink_(sink) {}

  void add_sequence(const AttentionSequence& sequence, std::int32_t index) {
    AttentionItem item{
        index, 0, 0, sequence.q_len * args_.group, 0, sequence.kv_len, -1, takes_decode(plan_, args_, sequence)};
    if (item.by_rows) {
      const KeyRange keys = keys_of(sequence, 0, 0);
      add_rows(item, keys, decode_cost(plan_, args_, keys.last - keys.first));
    } else {
      add_blocks(sequence, item);
    }
  }

  // The rows of all sequences over the shared keys, then each sequence over its own; all states are merged.
  void add_prefix(const SharedPrefix& prefix, std::span<const AttentionSequence> sequences) {
    const AttentionSequence& together = sequences[std::size_t(prefix.together)];
    const double cost = prefix_cost(plan_, args_, together);
    left_ -= cost * num_kv_heads_;
    const std::int64_t num_rows = together.q_len * args_.group, num_parts = parts_of(prefix.len, cost),
                       num_tiles = (prefix.len + plan_.key_tile - 1) / plan_.key_tile;
    Merged shared{prefix.len, sink_.num_partial_rows, num_rows, int(num_parts)};
    sink_.num_partial_rows += num_kv_heads_ * num_parts * num_rows;
    const std::int64_t step = plan_.blocks_per_item * plan_.block_rows;
    for (int kv_head = 0; kv_head < num_kv_heads_; ++kv_head) {
      for (std::int64_t part = 0; part < num_parts; ++part) {
        for (std::int64_t row = 0; row < num_rows; row += step) {
          sink_.add(AttentionItem{prefix.together, kv_head, row, std::min(row + step, num_rows),
                                  num_tiles * part / num_parts * plan_.key_tile,
                                  std::min(prefix.len, num_tiles * (part + 1) / num_parts * plan_.key_tile),
                                  shared.partial + (kv_head * num_parts + part) * num_rows + row, false});
        }
      }
    }
    for (std::int32_t index = prefix.first; index < prefix.first + prefix.count; ++index) {
      const AttentionSequence& sequence = sequences[std::size_t(index)];
      const std::int64_t own_rows = sequence.q_len * args_.group;
      const bool by_rows = takes_decode(plan_, args_, sequence);
      AttentionItem item{index, 0, 0, own_rows, prefix.len, sequence.kv_len, -1, by_rows};
      add_rows(item, {prefix.len, sequence.kv_len}, total_cost(plan_, args_, beyond(sequence, prefix)), &shared);
      shared.partial += own_rows;
    }
  }

 private:
  // Where the states over shared keys lie, of a sequence's first row in the first head.
  struct Merged {
    std::int64_t first_key, partial, num_rows;
    int num_parts;
  };

  // From the last rows to the first, which under a causal mask is from the longest to the shortest; the items shrink
  // with what is left, so that the threads end together.
  void add_blocks(const AttentionSequence& sequence, AttentionItem item) {
    const std::int64_t num_rows = item.last_row;
    for (std::int64_t end = num_blocks(plan_, args_, sequence); end > 0;) {
      const double share = left_ / double(3 * num_threads_);
      std::int64_t begin = end;
      double cost = 0;
      KeyRange keys{0, 0};
      while (begin > 0 && end - begin < plan_.blocks_per_item) {
        const KeyRange block_keys = keys_of_block(plan_, args_, sequence, begin - 1);
        const double block_cost = plan_.tile_cost * double(block_keys.last - block_keys.first);
        if (begin < end && cost + block_cost > share && num_threads_ > 1) break;
        keys = block_keys;
        cost += block_cost;
        --begin;
      }
      item.first_row = begin * plan_.block_rows;
      item.last_row = std::min(num_rows, end * plan_.block_rows);
      if (end - begin == 1) {
        add_rows(item, keys, cost);
      } else {
        add_whole(item);
        left_ -= cost * num_kv_heads_;
      }
      end = begin;
    }
  }

  void add_whole(AttentionItem item) {
    for (item.kv_head = 0; item.kv_head < num_kv_heads_; ++item.kv_head) sink_.add(item);
  }

  // For every head, rows that see `keys` at `cost`: one item, or equal parts of the keys that are worth one each.
  void add_rows(AttentionItem item, KeyRange keys, double cost, const Merged* shared = nullptr) {
    left_ -= cost * num_kv_heads_;
    const std::int64_t first_tile = keys.first / plan_.key_tile;
    const std::int64_t num_tiles = (keys.last + plan_.key_tile - 1) / plan_.key_tile - first_tile;
    const std::int64_t num_parts = parts_of(keys.last - keys.first, cost);
    if (num_parts <= 1 && !shared) return add_whole(item);
    const std::int64_t first = shared ? shared->first_key : 0;
    const std::int64_t num_rows = item.last_row - item.first_row, end = item.last_key;
    for (item.kv_head = 0; item.kv_head < num_kv_heads_; ++item.kv_head) {
      AttentionMerge merge{item.sequence, item.kv_head,           item.first_row,
                           num_rows,      sink_.num_partial_rows, int(num_parts)};
      if (shared) {
        merge.shared_partial = shared->partial + item.kv_head * shared->num_parts * shared->num_rows;
        merge.shared_rows = shared->num_rows;
        merge.num_shared_parts = shared->num_parts;
      }
      sink_.add(merge);
      for (std::int64_t part = 0; part < num_parts; ++part) {
        const auto border = [&](std::int64_t i) { return (first_tile + num_tiles * i / num_parts) * plan_.key_tile; };
        item.first_key = std::max(first, border(part));
        item.last_key = part + 1 == num_parts ? end : border(part + 1);
        item.partial = sink_.num_partial_rows;
        sink_.num_partial_rows += num_rows;
        sink_.add(item);
      }
    }
  }

  // As many as make the heads' parts divide among the threads.
  std::int64_t parts_of(std::int64_t num_keys, double cost) const {
    if (!plan_.split_keys || cost <= 1.5 * equal_share_) return 1;
    const std::int64_t most = std::min(num_keys / plan_.split_len, std::int64_t{kMaxParts});
    if (most < 1) return 1;
    const auto wanted = std::int64_t(cost / equal_share_ + 0.99);
    for (std::int64_t parts = wanted; parts < wanted + num_threads_ && parts <= most; ++parts) {
      if (parts * num_kv_heads_ % num_threads_ == 0) return parts;
    }
    return std::min(wanted, most);
  }

  const AttentionPlan& plan_;
  const AttentionArgs& args_;
  const int num_kv_heads_, num_threads_;
  double left_;               // cost of what has not been cut yet
  const double equal_share_;  // of a split
  Sink& sink_;
};

}  // namespace

AttentionSchedule schedule(const AttentionPlan& plan, const AttentionArgs& args, int num_kv_heads,
                           const SharedPrefixes& work, int num_threads, Arena& arena) {
  const auto& [sequences, prefixes] = work;
  const std::size_t batch = sequences.size() - prefixes.size();
  double cost = 0;
  for (std::size_t i = 0; i < batch; ++i) cost += total_cost(plan, args, sequences[i]);
  for (const SharedPrefix& prefix : prefixes) {
    cost += prefix_cost(plan, args, sequences[std::size_t(prefix.together)]);
    for (std::int32_t i = prefix.first; i < prefix.first + prefix.count; ++i) {
      const AttentionSequence& sequence = sequences[std::size_t(i)];
      cost += total_cost(plan, args, beyond(sequence, prefix)) - total_cost(plan, args, sequence);
    }
  }
  cost *= num_kv_heads;
  const auto pass = [&](Sink& sink) {
    Cutter cutter(plan, args, num_kv_heads, num_threads, cost, sink);
    std::size_t next = 0;
    for (std::size_t i = 0; i < batch; ++i) {
      if (next < prefixes.size() && i == std::size_t(prefixes[next].first)) {
        cutter.add_prefix(prefixes[next], sequences);
        i += std::size_t(prefixes[next++].count) - 1;
      } else if (sequences[i].q_len > 0) {
        cutter.add_sequence(sequences[i], std::int32_t(i));
      }
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
