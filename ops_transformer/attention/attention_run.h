// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "ops_transformer/attention/attention_kernel.h"
#include "ops_transformer/attention/attention_plan.h"
#include "ops_transformer/base/context.h"
#include "ops_transformer/profiler/profiler.h"

namespace ops_transformer {

/// Bytes and operations of one sequence.
Work work_of(const AttentionProblem& problem, const AttentionArgs& args, const AttentionSequence& sequence);

/// Plan, schedule and run of every face of attention; all has been validated. `partials` of args is set here;
/// `key_tile` is what the caller asks for, 0: the plan's.
void run_attention(CallScope& call, Zone& zone, const AttentionProblem& problem, AttentionArgs args,
                   std::span<const AttentionSequence> sequences);

}  // namespace ops_transformer
