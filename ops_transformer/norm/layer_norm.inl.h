// SPDX-License-Identifier: Apache-2.0
// Mean and variance of a row, gathered while it is read. Needs norm/rms_norm.inl.h before it.

// Sums of h - shift and of its square: one pass, and no cancellation while the shift is near the mean.
struct ShiftedMoments {
  F32 shift;
  F32 sums[4] = {};
  SquareSum squares;
  OPS_TRANSFORMER_INLINE void add(int part, F32 h) noexcept {
    const F32 d = h - shift;
    sums[part] += d;
    squares.add(part, d);
  }
  // Lanes past the row's end are zeros; they must not count as -shift.
  OPS_TRANSFORMER_INLINE void add_first(F32 h, int lanes) noexcept {
    const F32 d = h - shift;
    float kept[kLanes] = {};
    store_first(kept, d, lanes);
    sums[0] += load(kept);
    squares.add(0, load(kept));
  }
  OPS_TRANSFORMER_INLINE float sum_of_lanes() const noexcept { return sum((sums[0] + sums[1]) + (sums[2] + sums[3])); }
};

struct Moments {
  float mean, inverse_deviation;
};

OPS_TRANSFORMER_INLINE F32 sum_of_row(const float* row, std::int64_t n) noexcept {
  F32 total{};
  for (std::int64_t i = 0; i < n; i += kLanes) {
    total += load_first(row + i, int(n - i < kLanes ? n - i : kLanes));
  }
  return total;
}

// Rows whose mean is far from the shift, or whose squares leave the range of a float: from the row itself, which
// becomes h - mean (times a power of two where its sum could overflow or its mean be subnormal): its mean is 0
// afterwards.
[[maybe_unused]] Moments careful_moments(float* row, std::int64_t n, float eps) noexcept {
  F32 most{};
  for (std::int64_t i = 0; i < n; i += kLanes) {
    most = max(abs(load_first(row + i, int(n - i < kLanes ? n - i : kLanes))), most);
  }
  const float size = max_lane(most), scale = size > 0x1p60f ? 0x1p-64f : (size < 0x1p-60f ? 0x1p60f : 1.0f);
  if (scale != 1.0f) {
    for (std::int64_t i = 0; i < n; i += kLanes) {
      const int lanes = int(n - i < kLanes ? n - i : kLanes);
      store_first(row + i, load_first(row + i, lanes) * splat(scale), lanes);
    }
  }
  // Twice: the second mean is what rounding left of the first.
  for (int pass = 0; pass < 2; ++pass) {
    const F32 mean = splat(sum(sum_of_row(row, n)) / float(n));
    for (std::int64_t i = 0; i < n; i += kLanes) {
      const int lanes = int(n - i < kLanes ? n - i : kLanes);
      store_first(row + i, load_first(row + i, lanes) - mean, lanes);
    }
  }
  SquareSum squares;
  for (std::int64_t i = 0; i < n; i += kLanes) {
    squares.add(0, load_first(row + i, int(n - i < kLanes ? n - i : kLanes)));
  }
  return {0.0f, inverse_rms(row, n, squares.total(), eps * scale * scale)};
}

// Mean and 1 / sqrt(variance + eps) of a row, from its moments.
OPS_TRANSFORMER_INLINE Moments moments_of(float* row, std::int64_t n, const ShiftedMoments& shifted,
                                          float eps) noexcept {
  const float mean = shifted.sum_of_lanes() / float(n), squares = shifted.squares.total();
  const float centred = squares - mean * mean * float(n);
  // The shift within 1.7 deviations of the mean: the difference keeps its bits.
  if (centred >= 0.25f * squares && squares_count(centred, eps)) {
    return {shifted.shift[0] + mean, 1.0f / __builtin_sqrtf(centred / float(n) + eps)};
  }
  return careful_moments(row, n, eps);
}
