// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "ops_transformer/attention/attention_plan.h"

namespace ops_transformer {

std::vector<std::string> explain(const AttentionProblem& problem, const AttentionPlan& plan, const DeviceSpec& device,
                                 const AttentionPolicy& policy) {
  const int group = problem.num_q_heads / problem.num_kv_heads;
  std::vector<std::string> reasons;
  reasons.push_back(plan.bf16_dot ? fmt::format("tiles of bf16 pairs: keys are bf16 and the level ({}) multiplies them",
                                                isa_name(device.isa))
                                  : fmt::format("tiles of f32: keys are {} and the level is {}",
                                                dtype_name(problem.kv_dtype), isa_name(device.isa)));
  reasons.push_back(fmt::format(
      "{} rows in the lanes of a block: {} query heads share a key head, so its keys are read once for the group",
      plan.block_rows, group));
  reasons.push_back(
      fmt::format("tiles of {} keys{}, {} blocks over each packed tile: {} KB of scratch a thread, L2 is {} KB",
                  plan.key_tile, policy.block_size ? " (asked for)" : "", plan.blocks_per_item,
                  plan.scratch_bytes / 1024, device.l2_bytes / 1024));
  if (policy.deterministic) {
    reasons.push_back(
        "deterministic: one kernel for prefill and decode, and no sharing out of keys, so bits depend on nothing else");
  } else {
    reasons.push_back(plan.decode_rows
                          ? "a sequence of one query reads keys as rows, which is bound by memory, not by lanes"
                          : "a sequence of one query goes through the tiles too: the group fills enough lanes");
    reasons.push_back(plan.split_keys
                          ? fmt::format("keys are shared out over {} threads in parts of at least {}, and merged",
                                        policy.num_threads, plan.split_len)
                          : fmt::format("keys are not shared out: {} thread", policy.num_threads));
  }
  return reasons;
}

}  // namespace ops_transformer
