// SPDX-License-Identifier: Apache-2.0
// One level's region of quantised_linear_bench.cc: the rate of its int8 dot product, and a read of memory.
#include "ops_transformer/simd/begin.h"
namespace ops_transformer::OPS_TRANSFORMER_ISA {
namespace {
#include "ops_transformer/gemm/byte_dot.inl.h"

// Twelve chains of the dot product on operands in registers; returns the operations done, a product and its addition
// being two.
double peak_int8(std::int64_t rounds, std::int32_t* sink) noexcept {
  I32 sum[12], weights = splat_int(0x01020304), activations = splat_int(0x04030201);
  for (int j = 0; j < 12; ++j) sum[j] = splat_int(j);  // different, or they would be computed once
  for (std::int64_t i = 0; i < rounds; ++i) {
#if defined(__x86_64__)
    __asm__("" : "+v"(weights), "+v"(activations));
#endif
#pragma GCC unroll 12
    for (int j = 0; j < 12; ++j) sum[j] = dot_add<4>(sum[j], weights, activations);
  }
  I32 total = sum[0];
  for (int j = 1; j < 12; ++j) total += sum[j];
  __builtin_memcpy(sink, &total, sizeof(std::int32_t));
  return 2.0 * kVectorBytes * 12 * double(rounds);
}

std::int32_t read_all(const std::byte* p, std::int64_t bytes) noexcept {
  I32 total[4] = {};
  for (std::int64_t i = 0; i + 4 * kVectorBytes <= bytes; i += 4 * kVectorBytes) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      I32 v;
      __builtin_memcpy(&v, p + i + j * kVectorBytes, sizeof v);
      total[j] += v;
    }
  }
  const I32 all = (total[0] + total[1]) + (total[2] + total[3]);
  return all[0];
}

constexpr Limits limits{peak_int8, read_all};

}  // namespace
}  // namespace ops_transformer::OPS_TRANSFORMER_ISA
#include "ops_transformer/simd/end.h"
#undef OPS_TRANSFORMER_SIMD_512
#undef OPS_TRANSFORMER_SIMD_256
