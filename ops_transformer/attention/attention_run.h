// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "ops_transformer/attention/attention_kernel.h"
#include "ops_transformer/attention/attention_plan.h"
#include "ops_transformer/base/context.h"

namespace ops_transformer {

/// Plan, schedule and run of every face of attention; all has been validated. `partials` and `key_tile` of args are set
/// here. `op` names the profiler's zone.
void run_attention(CallScope& call, const char* op, const AttentionProblem& problem, AttentionArgs args,
                   std::span<const AttentionSequence> sequences);

}  // namespace ops_transformer
