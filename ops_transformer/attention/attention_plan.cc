// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/attention/attention_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "ops_transformer/attention/attention_kernel.h"
#include "ops_transformer/attention/flash_decode_layout.h"
#include "ops_transformer/attention/flash_tiles_layout.h"
#include "ops_transformer/base/memory.h"

namespace ops_transformer {
namespace {

// Bytes of a key and its value that flash_decode gets through in a cycle, for a group of up to 4 rows.
constexpr double kDecodeBytesPerCycle = 16;

// Whole vectors of keys at every level, and what the kernel's tables hold.
int tile_of(std::int64_t block_size) {
  return int(align_up(std::size_t(std::min<std::int64_t>(block_size, kMaxKeyTile)), 16));
}

}  // namespace

AttentionPlan plan(const AttentionProblem& problem, const DeviceSpec& device, const AttentionPolicy& policy) {
  const int group = problem.num_q_heads / std::max(1, problem.num_kv_heads);
  const double dims = problem.head_dim + problem.value_dim;
  AttentionPlan plan{};
  plan.bf16_dot = device.bf16_dot_len == 2 && problem.kv_dtype == DType::bf16;
  plan.decode_rows = !policy.deterministic && group <= kMaxDecodeRows;
  plan.share_prefixes = !policy.deterministic;
  plan.split_keys = !policy.deterministic && policy.num_threads > 1;
  // Must not depend on lengths: in deterministic mode the tiles' borders are part of the result.
  plan.key_tile = policy.block_size == 0 ? 128 : tile_of(policy.block_size);
  plan.block_rows = (device.vector_bytes == 64 ? 4 : 2) * device.f32_lanes();
  const auto layout =
      FlashTilesLayout::make(problem.head_dim, problem.value_dim, plan.key_tile, plan.block_rows, plan.bf16_dot);
  const auto block_bytes = std::int64_t(layout.bytes(1) - layout.bytes(0));
  const std::int64_t room = std::int64_t(device.l2_bytes / 2) - std::int64_t(layout.bytes(0));
  plan.blocks_per_item = int(std::clamp<std::int64_t>(room / block_bytes, 1, kMaxBlocksPerItem));
  plan.items_per_thread = policy.num_threads == 1 ? 1 : 6;
  plan.split_len = 256;
  const double rate = plan.bf16_dot ? device.bf16_flops_per_cycle : device.f32_flops_per_cycle;
  plan.tile_cost = 2 * dims * plan.block_rows / rate;
  plan.decode_cost = dims * double(element_bytes(problem.kv_dtype)) / kDecodeBytesPerCycle;
  plan.partial_stride = (problem.value_dim + 31) / 32 * 32 + 16;
  const std::size_t decode_bytes =
      FlashDecodeLayout::make(problem.head_dim, problem.value_dim).bytes(std::min(group, kMaxDecodeRows));
  plan.scratch_bytes = align_up(std::max(layout.bytes(plan.blocks_per_item), decode_bytes), 4096);
  return plan;
}

std::string describe(const AttentionPlan& plan) {
  return fmt::format("{} tiles of {} keys x {} rows, {} blocks an item{}{}", plan.bf16_dot ? "bf16" : "f32",
                     plan.key_tile, plan.block_rows, plan.blocks_per_item,
                     plan.decode_rows ? ", decode by rows" : ", one kernel",
                     plan.split_keys ? fmt::format(", keys split from {} on", plan.split_len) : "");
}

}  // namespace ops_transformer
