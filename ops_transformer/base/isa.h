// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "ops_transformer/base/export.h"

namespace ops_transformer {

/// Instruction-set levels, ascending; isa_features.h lists what each one needs.
enum class Isa : std::uint8_t { generic, avx2, avx2_vnni, avx512, avx512_vnni, avx512_bf16 };
inline constexpr int kNumIsas = 6;

OPS_TRANSFORMER_API std::string_view isa_name(Isa isa) noexcept;
OPS_TRANSFORMER_API std::optional<Isa> isa_from_name(std::string_view name) noexcept;

/// What the CPU and the operating system report; raw, so that tests can make one up.
struct CpuFeatures {
  std::uint32_t leaf1_ecx = 0, leaf7_ebx = 0, leaf7_ecx = 0, leaf7_1_eax = 0;
  std::uint64_t xcr0 = 0;
};
OPS_TRANSFORMER_API CpuFeatures read_cpu_features() noexcept;

/// True where the CPU has every feature of the level and the operating system saves its registers.
OPS_TRANSFORMER_API bool supports(const CpuFeatures& features, Isa isa) noexcept;

/// Levels that run here, ascending; OPS_TRANSFORMER_ISA caps the list and never raises it.
/// Throws InvalidArgument where that variable names no level.
OPS_TRANSFORMER_API std::span<const Isa> supported_isas();

/// One kernel compiled for several levels: a table that dispatcher, tests and benchmarks loop over.
template <class Fn>
struct Kernel {
  std::array<Fn*, kNumIsas> by_isa{};

  /// The row of exactly this level; nullptr where the kernel has none.
  constexpr Fn* row(Isa isa) const { return by_isa[static_cast<std::size_t>(isa)]; }

  /// The best row that runs here and is not above `cap`.
  Fn* at(Isa cap) const {
    Fn* best = nullptr;
    for (Isa isa : supported_isas()) {
      if (isa <= cap && row(isa)) best = row(isa);
    }
    return best;
  }
};

}  // namespace ops_transformer

// Declares a kernel at each level of its `// levels:` line, and its table:
//   OPS_TRANSFORMER_KERNEL(rms_norm_rows, NormFn, generic, avx2, avx512)
#define OPS_TRANSFORMER_KERNEL(name, Fn, ...)                                    \
  OPS_TRANSFORMER_EACH_LEVEL(OPS_TRANSFORMER_DECLARE_ROW, name, Fn, __VA_ARGS__) \
  inline constexpr ::ops_transformer::Kernel<Fn> name = [] {                     \
    ::ops_transformer::Kernel<Fn> kernel;                                        \
    OPS_TRANSFORMER_EACH_LEVEL(OPS_TRANSFORMER_FILL_ROW, name, Fn, __VA_ARGS__)  \
    return kernel;                                                               \
  }();
#define OPS_TRANSFORMER_DECLARE_ROW(name, Fn, level) \
  namespace level {                                  \
  Fn name;                                           \
  }
#define OPS_TRANSFORMER_FILL_ROW(name, Fn, level) \
  kernel.by_isa[static_cast<std::size_t>(::ops_transformer::Isa::level)] = &level::name;

// Other processors have the generic level alone.
#if defined(__x86_64__)
  #define OPS_TRANSFORMER_EACH_LEVEL(m, name, Fn, ...) \
    __VA_OPT__(OPS_TRANSFORMER_EXPAND(OPS_TRANSFORMER_EACH_STEP(m, name, Fn, __VA_ARGS__)))
  #define OPS_TRANSFORMER_EACH_STEP(m, name, Fn, level, ...) \
    m(name, Fn, level) __VA_OPT__(OPS_TRANSFORMER_EACH_AGAIN OPS_TRANSFORMER_PARENS(m, name, Fn, __VA_ARGS__))
  #define OPS_TRANSFORMER_EACH_AGAIN() OPS_TRANSFORMER_EACH_STEP
  #define OPS_TRANSFORMER_PARENS ()
  #define OPS_TRANSFORMER_EXPAND(...) OPS_TRANSFORMER_EXPAND1(OPS_TRANSFORMER_EXPAND1(__VA_ARGS__))
  #define OPS_TRANSFORMER_EXPAND1(...) OPS_TRANSFORMER_EXPAND2(OPS_TRANSFORMER_EXPAND2(__VA_ARGS__))
  #define OPS_TRANSFORMER_EXPAND2(...) __VA_ARGS__
#else
  #define OPS_TRANSFORMER_EACH_LEVEL(m, name, Fn, ...) m(name, Fn, generic)
#endif
