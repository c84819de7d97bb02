// SPDX-License-Identifier: Apache-2.0
// The root mean square of a row, for this family's kernel and for those that fuse it (query and key heads before they
// are rotated). Needs simd/simd.inl.h, which simd/begin.h includes.

// Four accumulators, since one would wait for the latency of its own addition.
struct SquareSum {
  F32 parts[4] = {};
  OPS_TRANSFORMER_INLINE void add(int part, F32 v) noexcept { parts[part] = fma(v, v, parts[part]); }
  OPS_TRANSFORMER_INLINE float total() const noexcept { return sum((parts[0] + parts[1]) + (parts[2] + parts[3])); }
};

// The squares of a row lie well inside what a float holds, or eps hides what is lost below.
OPS_TRANSFORMER_INLINE bool squares_count(float squares, float eps) noexcept {
  return squares <= 3.0e38f && (squares >= 0x1p-100f || eps >= 0x1p-100f);
}

// Otherwise squares are those of the row times a power of two. A small row is scaled for good, since its own inverse
// may be no float.
[[maybe_unused]] float inverse_rms_scaled(float* row, std::int64_t n, float squares, float eps) noexcept {
  const bool large = !(squares < 1.0f);
  const float scale = large ? 0x1p-96f : 0x1p96f;
  F32 most{};
  SquareSum scaled;
  for (std::int64_t i = 0; i < n; i += kLanes) {
    const int lanes = int(n - i < kLanes ? n - i : kLanes);
    const F32 h = load_first(row + i, lanes), product = h * splat(scale);
    most = max(abs(h), most);
    scaled.add(0, product);
    if (!large) store_first(row + i, product, lanes);
  }
  if (!(max_lane(most) <= 3.4028235e38f)) return squares - squares;  // infinity in the row; NaN is in the sum
  const float total = scaled.total();
  if (total == 0) return 1.0f;  // zeros, whatever they are multiplied by
  return (large ? scale : 1.0f) / __builtin_sqrtf(total / float(n) + eps * scale * scale);
}

// 1 / sqrt(mean(row^2) + eps), from the sum of its squares.
OPS_TRANSFORMER_INLINE float inverse_rms(float* row, std::int64_t n, float squares, float eps) noexcept {
  return squares_count(squares, eps) ? 1.0f / __builtin_sqrtf(squares / float(n) + eps)
                                     : inverse_rms_scaled(row, n, squares, eps);
}
