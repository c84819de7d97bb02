// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/attention/attention_run.h"

#include <algorithm>
#include <limits>

#include "ops_transformer/attention/attention_schedule.h"

namespace ops_transformer {
namespace {

// Below this many values a second fork costs more than it saves.
constexpr std::int64_t kMergeInline = 16384;
constexpr float kLn2 = 0.693147181f, kLog2E = 1.44269504f;
constexpr float kNoSink = -std::numeric_limits<float>::infinity();

void merge(const AttentionArgs& args, const AttentionSequence& sequence, const AttentionMerge& merge, MergeRowFn* fn) {
  AttentionPart parts[2 * kMaxParts + 1];
  float weights[2 * kMaxParts + 1];
  for (std::int64_t r = 0; r < merge.num_rows; ++r) {
    int num_parts = 0;
    const auto add_part = [&](std::int64_t partial) {
      const float* state = args.partials + partial * args.partial_stride;
      parts[num_parts++] = {state, DType::f32, state[args.partial_stride - 2], state[args.partial_stride - 1], 1.0f};
    };
    for (int p = 0; p < merge.num_shared_parts; ++p) add_part(merge.shared_partial + p * merge.shared_rows + r);
    for (int p = 0; p < merge.num_parts; ++p) add_part(merge.first_partial + p * merge.num_rows + r);
    const RowPlace place = row_place(args, merge.kv_head, merge.first_row + r);
    const float sink = args.sinks ? args.sinks[place.head] : kNoSink;
    if (sink != kNoSink) parts[num_parts++] = {nullptr, DType::f32, sink * kLog2E, 1.0f, 0.0f};
    fn(parts, num_parts, {1.0f, kLn2},
       {args.out, args.out_dtype, out_offset(args, sequence, place), args.value_dim,
        softmax_places(args, sequence, place), args.keep_scale},
       weights);
  }
}

}  // namespace

Work work_of(const AttentionProblem& problem, const AttentionArgs& args, const AttentionSequence& sequence) {
  const std::int64_t dims = problem.head_dim + problem.value_dim, rows = sequence.q_len * problem.num_q_heads;
  const auto bytes = [](DType dtype) { return std::int64_t(element_bytes(dtype)); };
  // Scores under the mask's diagonal, if there is one.
  const std::int64_t hidden = sequence.window_right == 0 ? std::min(sequence.q_len, sequence.kv_len) / 2 : 0;
  return {
      .bytes = rows * (problem.head_dim * bytes(args.q_dtype) + problem.value_dim * bytes(args.out_dtype)) +
               sequence.kv_len * problem.num_kv_heads * dims * bytes(args.kv_dtype),
      .flops = 2 * dims * rows * std::max<std::int64_t>(0, std::min(sequence.kv_len - hidden, sequence.window_left))};
}

void run_attention(CallScope& call, Zone& zone, const AttentionProblem& problem, AttentionArgs args,
                   std::span<const AttentionSequence> sequences) {
  Context& context = call.context();
  const AttentionPlan chosen =
      plan(problem, this_device(context.isa()), {call.num_threads(), context.deterministic(), args.key_tile});
  zone.plan([&] { return describe(chosen); });
  args.key_tile = chosen.key_tile;
  args.partial_stride = chosen.partial_stride;
  const SharedPrefixes shared = share_prefixes(chosen, args, sequences, call.arena());
  const AttentionSchedule work = schedule(chosen, args, problem.num_kv_heads, shared, call.num_threads(), call.arena());
  args.partials = call.arena().allocate<float>(std::size_t(work.num_partial_rows * chosen.partial_stride)).data();
  std::byte* scratch = call.arena().allocate_bytes(chosen.scratch_bytes * std::size_t(call.num_threads()));
  AttentionFn* tiles = chosen.bf16_dot ? flash_tiles_bf16.at(context.isa()) : flash_tiles.at(context.isa());
  AttentionFn* decode = flash_decode.at(context.isa());
  call.parallel_for(work.items.size(), [&](std::size_t i, int worker) {
    const AttentionItem& item = work.items[i];
    AttentionFn* fn = item.by_rows ? decode : tiles;
    fn(args, shared.sequences[std::size_t(item.sequence)], item, scratch + std::size_t(worker) * chosen.scratch_bytes);
  });
  MergeRowFn* merge_row = merge_attention_row.at(context.isa());
  const auto merge_one = [&](std::size_t i, int) {
    merge(args, sequences[std::size_t(work.merges[i].sequence)], work.merges[i], merge_row);
  };
  if (work.num_partial_rows * problem.value_dim <= kMergeInline) {
    for (std::size_t i = 0; i < work.merges.size(); ++i) merge_one(i, 0);
  } else {
    call.parallel_for(work.merges.size(), merge_one);
  }
}

}  // namespace ops_transformer
