// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/tuning/device_spec.h"

#include <gtest/gtest.h>

namespace ops_transformer {
namespace {

TEST(DeviceSpec, ThisMachineIsPlausible) {
  for (Isa isa : supported_isas()) {
    const DeviceSpec& device = this_device(isa);
    EXPECT_EQ(device.isa, isa);
    EXPECT_GE(device.num_cores, 1);
    EXPECT_GE(device.l1d_bytes, std::size_t{8} << 10);
    EXPECT_LE(device.l1d_bytes, device.l2_bytes);
    EXPECT_LE(device.l2_bytes, std::size_t{256} << 20);
    EXPECT_GE(device.l3_bytes, std::size_t{512} << 10);
    EXPECT_EQ(&device, &this_device(isa));
  }
  EXPECT_EQ(this_device().isa, supported_isas().back());
}

TEST(DeviceSpec, LevelsSetVectorsAndRates) {
  const DeviceSpec avx2 = device_spec_of(Isa::avx2), bf16 = device_spec_of(Isa::avx512_bf16);
  EXPECT_EQ(avx2.f32_lanes(), 8);
  EXPECT_EQ(avx2.flops_per_cycle(DType::bf16), avx2.flops_per_cycle(DType::f32));
  EXPECT_EQ(bf16.f32_lanes(), 16);
  EXPECT_EQ(bf16.flops_per_cycle(DType::bf16), 2 * bf16.flops_per_cycle(DType::f32));
  EXPECT_EQ(bf16.flops_per_cycle(DType::q4_1), 4 * bf16.flops_per_cycle(DType::f32));
  EXPECT_EQ(device_spec_of(Isa::avx2_vnni).int8_dot_len, 4);
  EXPECT_EQ(device_spec_of(Isa::avx512).int8_dot_len, 1);
}

TEST(DeviceSpec, CanBeMadeUp) {
  DeviceSpec device = device_spec_of(Isa::avx512);
  device.num_cores = 96;
  device.l2_bytes = std::size_t{2} << 20;
  EXPECT_NE(describe(device).find("avx512: 96 cores, L1d 32 KiB, L2 2048 KiB"), std::string::npos) << describe(device);
}

}  // namespace
}  // namespace ops_transformer
