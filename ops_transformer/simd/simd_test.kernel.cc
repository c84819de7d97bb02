// SPDX-License-Identifier: Apache-2.0
// levels: generic avx2 avx512 avx512_bf16
#include "ops_transformer/simd/simd_test_kernel.h"

#include "ops_transformer/simd/begin.h"

namespace ops_transformer::OPS_TRANSFORMER_ISA {
namespace {

#include "ops_transformer/simd/interleave.inl.h"

template <class T>
F32 through(F32 v, int lanes) noexcept {
  T stored[kLanes];
  if (lanes == kLanes) {
    store(stored, v);
    return load(stored);
  }
  store_first(stored, v, lanes);
  return load_first(stored, lanes);
}

F32 apply(SimdFunction function, F32 v, int lanes) noexcept {
  switch (function) {
    case SimdFunction::exp2:
      return exp2(v);
    case SimdFunction::exp:
      return exp(v);
    case SimdFunction::tanh:
      return tanh(v);
    case SimdFunction::through_bf16:
      return through<BFloat16>(v, lanes);
    default:
      return through<Float16>(v, lanes);
  }
}

}  // namespace

void simd_map(SimdFunction function, const float* x, float* y, std::size_t n) noexcept {
  for (std::size_t i = 0; i < n; i += kLanes) {
    const int lanes = n - i < kLanes ? int(n - i) : kLanes;
    if (lanes == kLanes) {
      store(y + i, apply(function, load(x + i), lanes));
    } else {
      store_first(y + i, apply(function, load_first(x + i, lanes), lanes), lanes);
    }
  }
}

int simd_reduce(const float* x, float& total, float& largest) noexcept {
  total = sum(load(x));
  largest = max_lane(load(x));
  return kLanes;
}

int simd_interleave(const float* x, float* even, float* odd, float* again) noexcept {
  const F32 a = load(x), b = load(x + kLanes);
  const F32 evens = even_lanes(a, b), odds = odd_lanes(a, b);
  store(even, evens);
  store(odd, odds);
  store(again, interleave_low(evens, odds));
  store(again + kLanes, interleave_high(evens, odds));
  return kLanes;
}

}  // namespace ops_transformer::OPS_TRANSFORMER_ISA
#include "ops_transformer/simd/end.h"
