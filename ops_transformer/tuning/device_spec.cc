// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/tuning/device_spec.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#if defined(__x86_64__)
  #include <cpuid.h>
#endif

namespace ops_transformer {
namespace {

// "48K", "32M" or "512"; 0 for anything else.
std::size_t parse_size(const std::string& text) {
  std::size_t value = 0, i = 0;
  for (; i < text.size() && text[i] >= '0' && text[i] <= '9' && value < (std::size_t{1} << 40); ++i) {
    value = value * 10 + std::size_t(text[i] - '0');
  }
  const char unit = i < text.size() ? text[i] : '\0';
  return value << (unit == 'K' ? 10 : unit == 'M' ? 20 : unit == 'G' ? 30 : 0);
}

// Data cache of a level, from sysfs, else from the C library; 0 where neither knows it.
std::size_t cache_bytes(int level, int sysconf_name) {
  for (int index = 0; index < 8; ++index) {
    const std::string folder = fmt::format("/sys/devices/system/cpu/cpu0/cache/index{}/", index);
    std::ifstream level_file(folder + "level"), type_file(folder + "type"), size_file(folder + "size");
    int found_level = 0;
    std::string type, size;
    if (level_file >> found_level && type_file >> type && size_file >> size && found_level == level &&
        type != "Instruction") {
      if (const std::size_t bytes = parse_size(size)) return bytes;
    }
  }
  return std::size_t(std::max(0L, sysconf(sysconf_name)));
}

// AMD before Zen 5 runs a 512-bit operation as two of 256 bits: half of the nominal rate.
bool halves_512_bits() {
#if defined(__x86_64__)
  unsigned a, b, c, d;
  if (!__get_cpuid(0, &a, &b, &c, &d) || c != 0x444d4163) return false;  // "…cAMD"
  constexpr unsigned kFp512 = 1u << 3;
  return __get_cpuid(0x8000001a, &a, &b, &c, &d) && !(a & kFp512);
#else
  return false;
#endif
}

DeviceSpec measure(Isa isa) {
  DeviceSpec device = device_spec_of(isa);
  device.num_cores = int(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN)));
  const auto set = [](std::size_t& field, std::size_t found) {
    if (found) field = found;
  };
  set(device.l1d_bytes, cache_bytes(1, _SC_LEVEL1_DCACHE_SIZE));
  set(device.l2_bytes, cache_bytes(2, _SC_LEVEL2_CACHE_SIZE));
  set(device.l3_bytes, cache_bytes(3, _SC_LEVEL3_CACHE_SIZE));
  if (device.vector_bytes == 64 && halves_512_bits()) {
    device.f32_flops_per_cycle /= 2;
    device.bf16_flops_per_cycle /= 2;
    device.int8_ops_per_cycle /= 2;
  }
  return device;
}

}  // namespace

double DeviceSpec::flops_per_cycle(DType dtype) const {
  switch (dtype) {
    case DType::f32:
    case DType::f16:
      return f32_flops_per_cycle;
    case DType::bf16:
      return bf16_flops_per_cycle;
    default:
      return int8_ops_per_cycle;
  }
}

DeviceSpec device_spec_of(Isa isa) {
  DeviceSpec device{.isa = isa};
  const bool wide = isa >= Isa::avx512;
  if (isa == Isa::generic) {
#if defined(__aarch64__)
    device.f32_flops_per_cycle = 16;
#endif
  } else {
    device.vector_bytes = wide ? 64 : 32;
    device.f32_flops_per_cycle = wide ? 64 : 32;  // two FMA a cycle
  }
  device.bf16_dot_len = isa == Isa::avx512_bf16 ? 2 : 1;
  device.int8_dot_len = isa == Isa::avx2_vnni || isa >= Isa::avx512_vnni ? 4 : 1;
  device.bf16_flops_per_cycle = device.f32_flops_per_cycle * device.bf16_dot_len;
  device.int8_ops_per_cycle = device.f32_flops_per_cycle * device.int8_dot_len;
  return device;
}

const DeviceSpec& this_device(Isa isa) {
  static const auto devices = [] {
    std::array<DeviceSpec, kNumIsas> all;
    for (int i = 0; i < kNumIsas; ++i) all[std::size_t(i)] = measure(static_cast<Isa>(i));
    return all;
  }();
  return devices[static_cast<std::size_t>(isa)];
}

const DeviceSpec& this_device() { return this_device(supported_isas().back()); }

std::string describe(const DeviceSpec& device) {
  return fmt::format(
      "{}: {} cores, L1d {} KiB, L2 {} KiB, L3 {} KiB, vectors of {} bytes, per cycle {:g} f32 flops, "
      "{:g} bf16 flops, {:g} int8 operations",
      isa_name(device.isa), device.num_cores, device.l1d_bytes >> 10, device.l2_bytes >> 10, device.l3_bytes >> 10,
      device.vector_bytes, device.f32_flops_per_cycle, device.bf16_flops_per_cycle, device.int8_ops_per_cycle);
}

}  // namespace ops_transformer
