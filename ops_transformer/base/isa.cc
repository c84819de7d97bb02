// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/base/isa.h"

#include <fmt/format.h>

#include <cstdlib>
#include <string>

#include "ops_transformer/base/error.h"
#include "ops_transformer/base/isa_features.h"
#if defined(__x86_64__)
  #include <cpuid.h>
#endif

namespace ops_transformer {
namespace {

constexpr std::array<std::string_view, kNumIsas> kNames = {"generic", "avx2",        "avx2_vnni",
                                                           "avx512",  "avx512_vnni", "avx512_bf16"};

constexpr std::array<std::string_view, kNumIsas> kFeatures = {
    OPS_TRANSFORMER_FEATURE_STRING(OPS_TRANSFORMER_FEATURES_generic),
    OPS_TRANSFORMER_FEATURE_STRING(OPS_TRANSFORMER_FEATURES_avx2),
    OPS_TRANSFORMER_FEATURE_STRING(OPS_TRANSFORMER_FEATURES_avx2_vnni),
    OPS_TRANSFORMER_FEATURE_STRING(OPS_TRANSFORMER_FEATURES_avx512),
    OPS_TRANSFORMER_FEATURE_STRING(OPS_TRANSFORMER_FEATURES_avx512_vnni),
    OPS_TRANSFORMER_FEATURE_STRING(OPS_TRANSFORMER_FEATURES_avx512_bf16),
};

// Where CPUID reports a feature, and the register state that the operating system must save for it (XCR0).
struct FeatureBit {
  std::string_view name;
  std::uint32_t CpuFeatures::* word;
  int bit;
  std::uint64_t xcr0;
};
constexpr std::uint64_t kYmmState = 0x6, kZmmState = 0xe6;
constexpr FeatureBit kFeatureBits[] = {
    {"fma", &CpuFeatures::leaf1_ecx, 12, kYmmState},         {"f16c", &CpuFeatures::leaf1_ecx, 29, kYmmState},
    {"avx2", &CpuFeatures::leaf7_ebx, 5, kYmmState},         {"bmi2", &CpuFeatures::leaf7_ebx, 8, 0},
    {"avx512f", &CpuFeatures::leaf7_ebx, 16, kZmmState},     {"avx512dq", &CpuFeatures::leaf7_ebx, 17, kZmmState},
    {"avx512bw", &CpuFeatures::leaf7_ebx, 30, kZmmState},    {"avx512vl", &CpuFeatures::leaf7_ebx, 31, kZmmState},
    {"avx512vnni", &CpuFeatures::leaf7_ecx, 11, kZmmState},  {"avxvnni", &CpuFeatures::leaf7_1_eax, 4, kYmmState},
    {"avx512bf16", &CpuFeatures::leaf7_1_eax, 5, kZmmState},
};

bool has(const CpuFeatures& features, std::string_view name) noexcept {
  for (const FeatureBit& known : kFeatureBits) {
    if (known.name == name) {
      return (features.*known.word >> known.bit & 1u) && (features.xcr0 & known.xcr0) == known.xcr0;
    }
  }
  return false;
}

struct IsaList {
  std::array<Isa, kNumIsas> isas{};
  std::size_t count = 0;
};

IsaList detect() {
  Isa cap = static_cast<Isa>(kNumIsas - 1);
  if (const char* wanted = std::getenv("OPS_TRANSFORMER_ISA"); wanted && *wanted) {
    const auto isa = isa_from_name(wanted);
    if (!isa) {
      std::string known;
      for (std::string_view name : kNames) known += fmt::format("{}{}", known.empty() ? "" : ", ", name);
      throw InvalidArgument(fmt::format("OPS_TRANSFORMER_ISA is '{}', must be one of {}", wanted, known));
    }
    cap = *isa;
  }
  const CpuFeatures features = read_cpu_features();
  IsaList list;
  for (int i = 0; i < kNumIsas; ++i) {
    const Isa isa = static_cast<Isa>(i);
    if (isa <= cap && supports(features, isa)) list.isas[list.count++] = isa;
  }
  return list;
}

}  // namespace

std::string_view isa_name(Isa isa) noexcept { return kNames[static_cast<std::size_t>(isa)]; }

std::optional<Isa> isa_from_name(std::string_view name) noexcept {
  for (int i = 0; i < kNumIsas; ++i) {
    if (kNames[i] == name) return static_cast<Isa>(i);
  }
  return std::nullopt;
}

CpuFeatures read_cpu_features() noexcept {
  CpuFeatures features;
#if defined(__x86_64__)
  unsigned a, b, c, d;
  if (__get_cpuid(1, &a, &b, &c, &d)) features.leaf1_ecx = c;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) {
    features.leaf7_ebx = b;
    features.leaf7_ecx = c;
    if (a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d)) features.leaf7_1_eax = a;
  }
  if (features.leaf1_ecx >> 27 & 1u) {
    unsigned low, high;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    features.xcr0 = (std::uint64_t{high} << 32) | low;
  }
#endif
  return features;
}

bool supports(const CpuFeatures& features, Isa isa) noexcept {
  std::string_view list = kFeatures[static_cast<std::size_t>(isa)];
  while (!list.empty()) {
    const std::size_t end = list.find(',');
    if (!has(features, list.substr(0, end))) return false;
    list = end == std::string_view::npos ? std::string_view{} : list.substr(end + 1);
  }
  return true;
}

std::span<const Isa> supported_isas() {
  static const IsaList list = detect();
  return {list.isas.data(), list.count};
}

}  // namespace ops_transformer
