// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>

#include "ops_transformer/base/dtype.h"
#include "ops_transformer/base/isa.h"

namespace ops_transformer {

/// What a plan needs to know of a machine at one instruction-set level. Plain data: a plan is a pure function of it, so
/// a test, or a simulation of a machine that is not here, makes one up.
struct DeviceSpec {
  Isa isa = Isa::generic;
  int num_cores = 1;
  std::size_t l1d_bytes = std::size_t{32} << 10;  // of one core
  std::size_t l2_bytes = std::size_t{512} << 10;  // of one core
  std::size_t l3_bytes = std::size_t{8} << 20;    // of the cores that share it

  int vector_bytes = 16;
  // Products along K that one instruction sums into a 32-bit lane; 1: the level has no such instruction.
  int bf16_dot_len = 1;
  int int8_dot_len = 1;

  // Nominal rates of one core: a product and its addition count as two.
  double f32_flops_per_cycle = 8;
  double bf16_flops_per_cycle = 8;
  double int8_ops_per_cycle = 8;

  int f32_lanes() const { return vector_bytes / 4; }
  /// Rate for weights or keys of this type; block-quantised types use the int8 rate.
  OPS_TRANSFORMER_API double flops_per_cycle(DType dtype) const;
};

/// The facts that follow from a level alone, with default caches and one core.
OPS_TRANSFORMER_API DeviceSpec device_spec_of(Isa isa);

/// This machine at the given level, by default the best that runs here. Read once.
OPS_TRANSFORMER_API const DeviceSpec& this_device(Isa isa);
OPS_TRANSFORMER_API const DeviceSpec& this_device();

/// One line, for `explain` and for bug reports.
OPS_TRANSFORMER_API std::string describe(const DeviceSpec& device);

}  // namespace ops_transformer
