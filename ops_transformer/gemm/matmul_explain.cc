// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "ops_transformer/gemm/matmul.h"

namespace ops_transformer {

std::vector<std::string> explain(const MatmulProblem& problem, const MatmulPlan& plan, const DeviceSpec& device,
                                 int num_threads) {
  const auto outputs = problem.num_tiles * kTileOutputs;
  const auto weight_bytes =
      double(PackedWeights::packed_bytes(problem.weights, outputs, problem.num_inputs, problem.scaling));
  const double flops = 2.0 * double(problem.num_rows) * double(outputs) * double(problem.num_inputs);
  const double peak = flops_per_cycle(problem, device);
  std::vector<std::string> reasons;
  reasons.push_back(fmt::format("{}: weights are {}, arithmetic is {}, the level is {}", plan.method->name,
                                dtype_name(problem.weights), problem.arithmetic == Arithmetic::exact ? "exact" : "fast",
                                isa_name(device.isa)));
  reasons.push_back(
      plan.prepares
          ? fmt::format("x ({}) is first brought into {} bytes a row, the form that the kernel multiplies{}",
                        dtype_name(problem.x), plan.prepared_row_bytes,
                        plan.prepares_in_items ? ", by each item for its own rows" : "")
          : fmt::format("x ({}) is read as it lies: the kernel broadcasts from its rows", dtype_name(problem.x)));
  reasons.push_back(
      fmt::format("{:.3g} flops over {:.3g} bytes of weights: {:.3g} a byte; a core does {:.0f} a cycle, so memory is "
                  "the limit below about {:.0f} a byte (8 bytes a cycle)",
                  flops, weight_bytes, flops / weight_bytes, peak, peak / 8));
  if (plan.inputs_per_block > 0) {
    reasons.push_back(fmt::format(
        "blocks of {} inputs: {:.0f} KB of the weights of {} outputs stay in the cache (L1 {} KB, L2 {} KB) while {} "
        "rows pass",
        plan.inputs_per_block,
        weight_bytes / double(problem.num_tiles) * double(plan.tiles_per_block) * double(plan.inputs_per_block) /
            double(problem.num_inputs) / 1024,
        plan.tiles_per_block * kTileOutputs, device.l1d_bytes / 1024, device.l2_bytes / 1024, plan.rows_per_item));
  }
  reasons.push_back(fmt::format("{} items for {} threads: the cut whose busiest thread has the fewest cycles",
                                plan.num_row_items * plan.num_tile_items, num_threads));
  return reasons;
}

}  // namespace ops_transformer
