// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/base/isa.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "ops_transformer/base/error.h"

namespace ops_transformer {
namespace {

constexpr std::uint64_t kSse = 0x3, kYmm = 0x7, kZmm = 0xe7;

// A Zen 4: everything up to avx512_bf16, but no AVX-VNNI.
CpuFeatures zen4() {
  return {.leaf1_ecx = 1u << 12 | 1u << 27 | 1u << 28 | 1u << 29,
          .leaf7_ebx = 1u << 5 | 1u << 8 | 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31,
          .leaf7_ecx = 1u << 11,
          .leaf7_1_eax = 1u << 5,
          .xcr0 = kZmm};
}

std::vector<Isa> levels_of(const CpuFeatures& features) {
  std::vector<Isa> levels;
  for (int i = 0; i < kNumIsas; ++i) {
    if (supports(features, static_cast<Isa>(i))) levels.push_back(static_cast<Isa>(i));
  }
  return levels;
}

TEST(Isa, LevelsFollowTheCpu) {
  EXPECT_EQ(levels_of({}), std::vector{Isa::generic});
  EXPECT_EQ(levels_of(zen4()), (std::vector{Isa::generic, Isa::avx2, Isa::avx512, Isa::avx512_vnni, Isa::avx512_bf16}));
  CpuFeatures alder_lake = zen4();
  alder_lake.leaf7_ebx = 1u << 5 | 1u << 8;
  alder_lake.leaf7_ecx = 0;
  alder_lake.leaf7_1_eax = 1u << 4;
  alder_lake.xcr0 = kYmm;
  EXPECT_EQ(levels_of(alder_lake), (std::vector{Isa::generic, Isa::avx2, Isa::avx2_vnni}));
}

// CPUID shows what the operating system or hypervisor did not enable.
TEST(Isa, RegistersThatNobodySavesDontCount) {
  CpuFeatures features = zen4();
  features.xcr0 = kYmm;
  EXPECT_EQ(levels_of(features), (std::vector{Isa::generic, Isa::avx2}));
  for (std::uint64_t missing : {0x20u, 0x40u, 0x80u}) {  // opmask, upper halves, upper sixteen
    features.xcr0 = kZmm & ~missing;
    EXPECT_EQ(levels_of(features), (std::vector{Isa::generic, Isa::avx2}));
  }
  features.xcr0 = kSse;
  EXPECT_EQ(levels_of(features), std::vector{Isa::generic});
  features.xcr0 = 0;
  EXPECT_EQ(levels_of(features), std::vector{Isa::generic});
}

TEST(Isa, EveryFeatureOfALevelIsNeeded) {
  for (auto [word, bit] : std::vector<std::pair<std::uint32_t CpuFeatures::*, int>>{{&CpuFeatures::leaf1_ecx, 12},
                                                                                    {&CpuFeatures::leaf1_ecx, 29},
                                                                                    {&CpuFeatures::leaf7_ebx, 5},
                                                                                    {&CpuFeatures::leaf7_ebx, 8}}) {
    CpuFeatures features = zen4();
    features.*word &= ~(1u << bit);
    EXPECT_EQ(levels_of(features), std::vector{Isa::generic}) << "bit " << bit;
  }
  for (int bit : {16, 17, 30, 31}) {
    CpuFeatures features = zen4();
    features.leaf7_ebx &= ~(1u << bit);
    EXPECT_EQ(levels_of(features), (std::vector{Isa::generic, Isa::avx2})) << "bit " << bit;
  }
}

TEST(Isa, NamesRoundTrip) {
  for (int i = 0; i < kNumIsas; ++i) {
    const Isa isa = static_cast<Isa>(i);
    EXPECT_EQ(isa_from_name(isa_name(isa)), isa);
  }
  EXPECT_EQ(isa_from_name("avx3"), std::nullopt);
  EXPECT_EQ(isa_from_name(""), std::nullopt);
}

TEST(Isa, SupportedLevelsAreThoseOfTheCpu) {
  const auto supported = supported_isas();
  EXPECT_EQ(supported.front(), Isa::generic);
  EXPECT_TRUE(std::ranges::is_sorted(supported));
  for (Isa isa : supported) EXPECT_TRUE(supports(read_cpu_features(), isa));
}

TEST(Kernel, TakesTheBestRowUpToTheCap) {
  using Fn = int();
  Kernel<Fn> kernel;
  kernel.by_isa[std::size_t(Isa::generic)] = [] { return 0; };
  kernel.by_isa[std::size_t(Isa::avx2)] = [] { return 1; };
  EXPECT_EQ(kernel.at(Isa::generic)(), 0);
  EXPECT_EQ(kernel.row(Isa::avx512), nullptr);
  const Isa best = supported_isas().back();
  EXPECT_EQ(kernel.at(best)(), best >= Isa::avx2 ? 1 : 0);
}

// The variable is read once, so each value gets its own process: exit status is the number of levels, 100 an error.
void exit_with_num_levels(const char* cap) {
  setenv("OPS_TRANSFORMER_ISA", cap, 1);
  try {
    std::_Exit(int(supported_isas().size()) +
               (supported_isas().back() > isa_from_name(cap).value_or(Isa::generic)) * 50);
  } catch (const InvalidArgument&) {
    std::_Exit(100);
  }
}

TEST(IsaDeathTest, TheEnvironmentLowersAndNeverRaises) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto all = levels_of(read_cpu_features());
  EXPECT_EXIT(exit_with_num_levels("generic"), testing::ExitedWithCode(1), "");
  EXPECT_EXIT(exit_with_num_levels("avx2"),
              testing::ExitedWithCode(std::ranges::count_if(all, [](Isa isa) { return isa <= Isa::avx2; })), "");
  EXPECT_EXIT(exit_with_num_levels("avx512_bf16"), testing::ExitedWithCode(int(all.size())), "");
  EXPECT_EXIT(exit_with_num_levels("avx9000"), testing::ExitedWithCode(100), "");
}

}  // namespace
}  // namespace ops_transformer
