// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "ops_transformer/attention/attention_kernel.h"
#include "ops_transformer/attention/attention_plan.h"
#include "ops_transformer/attention/shared_prefix.h"
#include "ops_transformer/base/memory.h"

namespace ops_transformer {

/// Partial results of the same rows: row r of part p is row first_partial + p * num_rows + r of the partials.
struct AttentionMerge {
  std::int32_t sequence, kv_head;
  std::int64_t first_row, num_rows;
  std::int64_t first_partial;
  int num_parts;
  // Over keys shared with other sequences: row r of part p is row shared_partial + p * shared_rows + r.
  std::int64_t shared_partial = 0, shared_rows = 0;
  int num_shared_parts = 0;
};

inline constexpr int kMaxParts = 64;

struct AttentionSchedule {
  std::span<AttentionItem> items;  // longest first, as far as that comes for free
  std::span<AttentionMerge> merges;
  std::int64_t num_partial_rows;
};

/// Cuts the sequences into items of about equal cost. Nothing is allocated but from the arena.
AttentionSchedule schedule(const AttentionPlan& plan, const AttentionArgs& args, int num_kv_heads,
                           const SharedPrefixes& work, int num_threads, Arena& arena);

}  // namespace ops_transformer
