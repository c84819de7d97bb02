// SPDX-License-Identifier: Apache-2.0
// levels: generic avx2 avx512
#include "ops_transformer/attention/causal_softmax_kernel.h"

#include "ops_transformer/simd/begin.h"

namespace ops_transformer::OPS_TRANSFORMER_ISA {
namespace {

constexpr float kLog2E = 1.44269504f;

OPS_TRANSFORMER_INLINE int lanes_at(std::int64_t i, std::int64_t n) noexcept {
  return int(n - i < kLanes ? n - i : kLanes);
}

// Largest of n > 0 values. A NaN among them may go unseen here: it comes back when its own exponential is taken.
float largest(const float* s, std::int64_t n) noexcept {
  F32 most = splat(s[0]);
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) most = max(load(s + i), most);
  for (; i < n; ++i) most = max(splat(s[i]), most);
  return max_lane(most);
}

}  // namespace

void softmax_row(float* scores, std::int64_t num_keys, std::int64_t num_visible, float scale) noexcept {
  if (num_visible > 0) {
    const float factor = scale * kLog2E;
    const F32 most = splat(factor * largest(scores, num_visible)), factors = splat(factor);
    F32 total{};
    for (std::int64_t i = 0; i < num_visible; i += kLanes) {
      const int lanes = lanes_at(i, num_visible);
      F32 p = exp2(fma(load_first(scores + i, lanes), factors, -most));
      store_first(scores + i, p, lanes);
      for (int j = lanes; j < kLanes; ++j) p[j] = 0.0f;
      total += p;
    }
    const F32 inverse = splat(1.0f / sum(total));
    for (std::int64_t i = 0; i < num_visible; i += kLanes) {
      const int lanes = lanes_at(i, num_visible);
      store_first(scores + i, load_first(scores + i, lanes) * inverse, lanes);
    }
  }
  for (std::int64_t i = num_visible; i < num_keys; i += kLanes) store_first(scores + i, F32{}, lanes_at(i, num_keys));
}

}  // namespace ops_transformer::OPS_TRANSFORMER_ISA
#include "ops_transformer/simd/end.h"
