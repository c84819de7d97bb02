// SPDX-License-Identifier: Apache-2.0
// Scales and zeros of a packed group of integer weights (IntegerLayout), kLanes outputs from `lane` on. Included inside
// a level's region, after simd/begin.h.

OPS_TRANSFORMER_INLINE F32 load_scales(const IntegerArgs& integers, const std::byte* group, int lane) noexcept {
  const std::byte* const scales = group + integers.codes_bytes;
  if (integers.scales == DType::f32) return load(reinterpret_cast<const float*>(scales) + lane);
  if (integers.scales == DType::bf16) return load(reinterpret_cast<const BFloat16*>(scales) + lane);
  return load(reinterpret_cast<const Float16*>(scales) + lane);
}

OPS_TRANSFORMER_INLINE I32 load_zeros(const IntegerArgs& integers, const std::byte* group, int lane) noexcept {
  if (!integers.has_zeros) return splat_int(integers.code_zero);
  typedef std::uint8_t Bytes __attribute__((vector_size(kLanes)));
  Bytes bytes;
  __builtin_memcpy(&bytes, group + integers.group_bytes - kTileOutputs + lane, sizeof bytes);
  return __builtin_convertvector(bytes, I32);
}
