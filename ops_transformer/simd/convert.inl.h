// SPDX-License-Identifier: Apache-2.0
// Rows of f32, bf16 or f16 behind a void pointer. The dtype is the same for a whole call, so its branch predicts.

OPS_TRANSFORMER_INLINE F32 load_any(const void* p, DType dtype, std::int64_t i, int lanes) noexcept {
  if (dtype == DType::f32) {
    const float* q = static_cast<const float*>(p) + i;
    return lanes == kLanes ? load(q) : load_first(q, lanes);
  }
  if (dtype == DType::bf16) {
    const BFloat16* q = static_cast<const BFloat16*>(p) + i;
    return lanes == kLanes ? load(q) : load_first(q, lanes);
  }
  const Float16* q = static_cast<const Float16*>(p) + i;
  return lanes == kLanes ? load(q) : load_first(q, lanes);
}

OPS_TRANSFORMER_INLINE void store_any(void* p, DType dtype, std::int64_t i, F32 v, int lanes) noexcept {
  if (dtype == DType::f32) {
    float* q = static_cast<float*>(p) + i;
    lanes == kLanes ? store(q, v) : store_first(q, v, lanes);
  } else if (dtype == DType::bf16) {
    BFloat16* q = static_cast<BFloat16*>(p) + i;
    lanes == kLanes ? store(q, v) : store_first(q, v, lanes);
  } else {
    Float16* q = static_cast<Float16*>(p) + i;
    lanes == kLanes ? store(q, v) : store_first(q, v, lanes);
  }
}

[[maybe_unused]] void read_row(const void* p, DType dtype, std::int64_t begin, std::int64_t n, float* row) noexcept {
  for (std::int64_t i = 0; i < n; i += kLanes) {
    const int lanes = int(n - i < kLanes ? n - i : kLanes);
    store_any(row, DType::f32, i, load_any(p, dtype, begin + i, lanes), lanes);
  }
}
