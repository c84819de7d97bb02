// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "ops_transformer/attention/attention_kernel.h"
#include "ops_transformer/attention/attention_plan.h"
#include "ops_transformer/base/memory.h"

namespace ops_transformer {

/// Partial results of the same rows: row r of part p is row first_partial + p * num_rows + r of the partials.
struct AttentionMerge {
  std::int32_t sequence, kv_head;
  std::int64_t first_row, num_rows;
  std::int64_t first_partial;
  int num_parts;
};

inline constexpr int kMaxParts = 64;

struct AttentionSchedule {
  std::span<AttentionItem> items;  // longest first, as far as that comes for free
  std::span<AttentionMerge> merges;
  std::int64_t num_partial_rows;
};

/// Cuts the sequences into items of about equal cost. Nothing is allocated but from the arena.
AttentionSchedule schedule(const AttentionPlan& plan, const AttentionArgs& args, int num_kv_heads,
                           std::span<const AttentionSequence> sequences, int num_threads, Arena& arena);

}  // namespace ops_transformer
