// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "ops_transformer/base/dtype.h"
#include "ops_transformer/base/export.h"
#include "ops_transformer/tuning/device_spec.h"

namespace ops_transformer {

/// What a plan is made for: no pointers, no strides, no lengths, so that a growing context keeps its plan.
struct AttentionProblem {
  int num_q_heads, num_kv_heads, head_dim, value_dim;
  DType kv_dtype;
};

struct AttentionPolicy {
  int num_threads;
  bool deterministic;
  std::int64_t block_size = 0;  // keys of a tile that the caller asks for; 0: the plan's choice
};

/// How a call is cut into items. Lengths enter only in the schedule.
struct AttentionPlan {
  bool bf16_dot;           // tiles of bf16 pairs, else f32
  bool decode_rows;        // sequences of one query take flash_decode
  bool share_prefixes;     // keys that sequences of pages share are read once for all of them
  bool split_keys;         // a sequence's keys may be shared out; the partial results are merged
  int key_tile;            // keys packed at a time
  int block_rows;          // rows (query x head of the group) in the lanes of a block
  int blocks_per_item;     // at most; they share the packed keys
  int items_per_thread;    // aimed at, so that threads that finish early find more
  std::int64_t split_len;  // fewest keys worth an item of their own
  double tile_cost;        // cycles for one key of a block
  double decode_cost;      // cycles for one key of a group of rows
  std::int64_t partial_stride;
  std::size_t scratch_bytes;  // for each thread
};

OPS_TRANSFORMER_API AttentionPlan plan(const AttentionProblem& problem, const DeviceSpec& device,
                                       const AttentionPolicy& policy);

/// One line, for profiles and `explain`.
OPS_TRANSFORMER_API std::string describe(const AttentionPlan& plan);

/// Why the plan is what it is, a sentence for each choice.
OPS_TRANSFORMER_API std::vector<std::string> explain(const AttentionProblem& problem, const AttentionPlan& plan,
                                                     const DeviceSpec& device, const AttentionPolicy& policy);

}  // namespace ops_transformer
