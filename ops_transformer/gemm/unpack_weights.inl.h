// SPDX-License-Identifier: Apache-2.0
// Packed quantised weights in registers: kLanes outputs of a tile. Included inside a level's region, after
// simd/begin.h.

// The four codes of group `group` (inputs 4 * group…) of 32 inputs whose planes begin at `codes`, a byte each, for the
// outputs from v * kLanes on.
template <DType kWeights>
OPS_TRANSFORMER_INLINE I32 unpack_codes(const std::byte* codes, int group, int v) noexcept {
  constexpr WeightForm kForm = weight_form(kWeights);
  constexpr int kLow = kForm.low_bits, kHigh = kForm.high_bits;
  I32 word;
  __builtin_memcpy(&word, codes + group % kLow * 64 + v * kVectorBytes, sizeof word);
  if constexpr (kLow == 8) return word;
  I32 code = (word >> group / kLow * kLow) & std::int32_t(((1u << kLow) - 1) * 0x01010101u);
  if constexpr (kHigh > 0) {
    __builtin_memcpy(&word, codes + (kLow + group % kHigh) * 64 + v * kVectorBytes, sizeof word);
    const int shift = group / kHigh * kHigh - kLow;  // from there to above the low bits
    code |= (shift < 0 ? word << -shift : word >> shift) & std::int32_t(((1u << kHigh) - 1) * (0x01010101u << kLow));
  }
  return code;
}

// Whole numbers of a byte each.
OPS_TRANSFORMER_INLINE F32 load_bytes(const std::byte* p) noexcept {
  typedef std::int8_t Bytes __attribute__((vector_size(kLanes)));
  Bytes bytes;
  __builtin_memcpy(&bytes, p, sizeof bytes);
  return __builtin_convertvector(bytes, F32);
}

struct ScaleAndMinimum {
  F32 scale, minimum;
};

// What multiplies the codes of the sub-block `sub` of a packed block (scale), and what each of its inputs adds
// (minimum; 0 where the type has none). Both products are exact.
template <DType kWeights>
OPS_TRANSFORMER_INLINE ScaleAndMinimum unpack_scales(const std::byte* block, int sub, int v) noexcept {
  constexpr WeightForm kForm = weight_form(kWeights);
  const auto* halves = reinterpret_cast<const Float16*>(block + kForm.scales_at()) + v * kLanes;
  ScaleAndMinimum result{load(halves), F32{}};
  if constexpr (kForm.has_minimum) result.minimum = load(halves + 16);
  const std::byte* subs = block + kForm.sub_scales_at() + sub * 16 + v * kLanes;
  if constexpr (kForm.sub_scale_bits == 8) {
    result.scale *= load_bytes(subs);
    if constexpr (kForm.has_minimum) result.minimum *= load_bytes(subs + kForm.sub_minima_at() - kForm.sub_scales_at());
  } else if constexpr (kForm.sub_scale_bits == 4) {
    typedef std::uint8_t Bytes __attribute__((vector_size(kLanes)));
    Bytes bytes;
    __builtin_memcpy(&bytes, subs, sizeof bytes);
    const I32 both = __builtin_convertvector(bytes, I32);
    result.scale *= __builtin_convertvector(both & 15, F32);
    result.minimum *= __builtin_convertvector(both >> 4, F32);
  }
  return result;
}
