// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "ops_transformer/attention/attention_kernel.h"
#include "ops_transformer/attention/attention_plan.h"
#include "ops_transformer/base/memory.h"

namespace ops_transformer {

/// Neighbouring sequences whose first pages are the same: their keys are read once for the rows of all, and what each
/// sequence has beyond is merged with that (Ye et al., Cascade Inference, 2024).
struct SharedPrefix {
  std::int32_t first, count;  // sequences
  std::int32_t together;      // the sequence that stands for all their rows over the shared keys
  std::int64_t len;           // shared keys
};

struct SharedPrefixes {
  std::span<const AttentionSequence> sequences;  // those given, then one for each prefix
  std::span<const SharedPrefix> prefixes;
};

/// Those worth it; none in deterministic mode, where a row's bits must not depend on its neighbours, nor under rules
/// that look at the keys shared. Nothing is allocated but from the arena.
SharedPrefixes share_prefixes(const AttentionPlan& plan, const AttentionArgs& args,
                              std::span<const AttentionSequence> sequences, Arena& arena);

}  // namespace ops_transformer
