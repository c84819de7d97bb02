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

// kLanes whole numbers of a byte each.
OPS_TRANSFORMER_INLINE I32 load_bytes(const std::byte* p) noexcept {
#if defined(OPS_TRANSFORMER_SIMD_512)
  return (I32)_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p));
#else
  typedef std::int8_t Bytes __attribute__((vector_size(kLanes)));
  Bytes bytes;
  __builtin_memcpy(&bytes, p, sizeof bytes);
  return __builtin_convertvector(bytes, I32);
#endif
}

// Of the sub-block `sub` of a packed block, the outputs from v * kLanes on.
template <DType kWeights>
OPS_TRANSFORMER_INLINE I32 unpack_sub_scales(const std::byte* block, int sub, int v) noexcept {
  constexpr WeightForm kForm = weight_form(kWeights);
  const I32 bytes = load_bytes(block + kForm.sub_scales_at(sub) + v * kLanes);
  return kForm.sub_scale_bits == 4 ? bytes & 15 : bytes;
}
template <DType kWeights>
OPS_TRANSFORMER_INLINE I32 unpack_sub_minima(const std::byte* block, int sub, int v) noexcept {
  constexpr WeightForm kForm = weight_form(kWeights);
  if constexpr (kForm.sub_scale_bits == 4) return (load_bytes(block + kForm.sub_scales_at(sub) + v * kLanes) >> 4) & 15;
  return load_bytes(block + kForm.sub_minima_at(sub) + v * kLanes);
}

// What multiplies the codes of the sub-block `sub` of a packed block. The product is exact.
template <DType kWeights>
OPS_TRANSFORMER_INLINE F32 unpack_scale(const std::byte* block, int v) noexcept {
  return load(reinterpret_cast<const Float16*>(block + weight_form(kWeights).scales_at()) + v * kLanes);
}
// The minimum of a sub-block: what each of its inputs adds. The product is exact.
template <DType kWeights>
OPS_TRANSFORMER_INLINE F32 unpack_minimum(const std::byte* block, int sub, int v) noexcept {
  constexpr WeightForm kForm = weight_form(kWeights);
  const F32 minimum = load(reinterpret_cast<const Float16*>(block + kForm.scales_at() + 32) + v * kLanes);
  if constexpr (kForm.sub_scale_bits == 0) return minimum;
  return minimum * __builtin_convertvector(unpack_sub_minima<kWeights>(block, sub, v), F32);
}
