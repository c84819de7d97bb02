// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/attention/shared_prefix.h"

#include <algorithm>

namespace ops_transformer {
namespace {

// Fewer shared keys are not worth a merge.
constexpr std::int64_t kFewestKeys = 256;
// One pass by tiles against as many by rows as there are sequences, whose keys come from L3 or memory at a part of the
// rate that the plan's costs assume.
constexpr double kRowsFromMemory = 2;

bool rules_allow(const AttentionArgs& args) {
  return !args.rule.bias.data && !args.rule.alibi_slopes && !args.dropout.data && !args.seed.any && !args.rope;
}

// Keys that every query of the sequence sees, whatever the mask's rules say of later ones.
std::int64_t keys_for_all(const AttentionPlan& plan, const AttentionArgs& args, const AttentionSequence& sequence) {
  const bool fits = sequence.pages && sequence.q_len > 0 && sequence.q_len * args.group <= plan.block_rows;
  const bool sees_all = sequence.window_left >= std::int64_t{1} << 31 && sequence.window_right >= 0;
  if (!fits || !sees_all || sequence.prefix_len > 0 || sequence.first_position != sequence.kv_len - sequence.q_len)
    return 0;
  const std::int64_t keys = std::max<std::int64_t>(0, sequence.kv_len - sequence.q_len);
  return args.rule.visible.data ? std::min(keys, sequence.visible_first_key) : keys;
}

std::int64_t shared_keys(const AttentionArgs& args, const AttentionSequence& a, const AttentionSequence& b,
                         std::int64_t most) {
  std::int64_t page = 0;
  while ((page + 1) * args.page_size <= most && a.pages[page] == b.pages[page]) ++page;
  return page * args.page_size;
}

bool worth_it(const AttentionPlan& plan, const AttentionArgs& args, const SharedPrefix& prefix, std::int64_t rows) {
  if (prefix.count < 2 || prefix.len < kFewestKeys) return false;
  if (!plan.decode_rows || rows > prefix.count * args.group) return true;  // each would take tiles of its own
  const double quarters = double((4 * rows + plan.block_rows - 1) / plan.block_rows);
  return plan.tile_cost * quarters / 4 <=
         kRowsFromMemory * plan.decode_cost * double(prefix.count) * double((args.group + 3) / 4);
}

// The longest run from `first` on that saves more keys with each sequence it takes in.
SharedPrefix prefix_from(const AttentionPlan& plan, const AttentionArgs& args,
                         std::span<const AttentionSequence> sequences, std::size_t first) {
  SharedPrefix prefix{std::int32_t(first), 1, 0, keys_for_all(plan, args, sequences[first])};
  std::int64_t rows = sequences[first].q_len * args.group;
  for (std::size_t i = first + 1; i < sequences.size() && prefix.len >= kFewestKeys; ++i) {
    const std::int64_t most = std::min(prefix.len, keys_for_all(plan, args, sequences[i]));
    const std::int64_t len = most < kFewestKeys ? 0 : shared_keys(args, sequences[first], sequences[i], most);
    if (len < kFewestKeys || len * prefix.count < prefix.len * (prefix.count - 1)) break;
    prefix.len = len;
    ++prefix.count;
    rows += sequences[i].q_len * args.group;
  }
  if (!worth_it(plan, args, prefix, rows)) prefix.count = 1;
  return prefix;
}

}  // namespace

SharedPrefixes share_prefixes(const AttentionPlan& plan, const AttentionArgs& args,
                              std::span<const AttentionSequence> sequences, Arena& arena) {
  if (!plan.share_prefixes || sequences.size() < 2 || !rules_allow(args)) return {sequences, {}};
  const auto pass = [&](SharedPrefix* found) {
    std::size_t count = 0;
    for (std::size_t i = 0; i < sequences.size();) {
      const SharedPrefix prefix = prefix_from(plan, args, sequences, i);
      if (prefix.count > 1) {
        if (found) found[count] = prefix;
        ++count;
      }
      i += std::size_t(prefix.count);
    }
    return count;
  };
  const std::size_t count = pass(nullptr);
  if (count == 0) return {sequences, {}};
  const auto prefixes = arena.allocate<SharedPrefix>(count);
  pass(prefixes.data());
  const auto all = arena.allocate<AttentionSequence>(sequences.size() + count);
  std::copy(sequences.begin(), sequences.end(), all.begin());
  for (std::size_t p = 0; p < count; ++p) {
    SharedPrefix& prefix = prefixes[p];
    prefix.together = std::int32_t(sequences.size() + p);
    AttentionSequence& together = all[std::size_t(prefix.together)];
    together = sequences[std::size_t(prefix.first)];  // its pages, and its first row: packed queries follow each other
    together.q_len = 0;
    for (std::int32_t i = 0; i < prefix.count; ++i) together.q_len += sequences[std::size_t(prefix.first + i)].q_len;
    together.kv_len = together.first_position = together.visible_first_key = prefix.len;
  }
  return {all, prefixes};
}

}  // namespace ops_transformer
