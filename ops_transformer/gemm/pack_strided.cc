// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/gemm/pack_strided.h"

#include <cstring>

#include "ops_transformer/gemm/linear_kernel.h"

namespace ops_transformer {
namespace {

// kGroup neighbouring inputs of an output stand side by side.
template <class T, int kGroup>
void pack(const void* const* rows, std::int64_t stride, std::int64_t first, std::int64_t last,
          std::byte* tile) noexcept {
  T* const out = reinterpret_cast<T*>(tile);
  const T* const base = static_cast<const T*>(rows[0]);
  bool neighbours = true;  // the rows' elements, as in a row-major [num_inputs, num_outputs]
  for (int r = 0; r < kTileOutputs; ++r) neighbours = neighbours && rows[r] == base + r;
  std::int64_t i = first;
  if (neighbours) {
    for (; i + kGroup <= last; i += kGroup) {
      const T* const from = base + i * stride;
      T* const to = out + i * kTileOutputs;
      if constexpr (kGroup == 1) {
        std::memcpy(to, from, kTileOutputs * sizeof(T));
      } else {
        for (int r = 0; r < kTileOutputs; ++r) {
          for (int g = 0; g < kGroup; ++g) to[r * kGroup + g] = from[g * stride + r];
        }
      }
    }
  }
  for (; i < last; i += kGroup) {
    for (int r = 0; r < kTileOutputs; ++r) {
      const T* const row = static_cast<const T*>(rows[r]);
      for (int g = 0; g < kGroup; ++g)
        out[i * kTileOutputs + r * kGroup + g] = row && i + g < last ? row[(i + g) * stride] : T{};
    }
  }
}

}  // namespace

void pack_strided(DType dtype, const void* const* rows, std::int64_t stride, std::int64_t first, std::int64_t last,
                  std::byte* tile) noexcept {
  if (dtype == DType::f32) return pack<std::uint32_t, 1>(rows, stride, first, last, tile);
  if (dtype == DType::f16) return pack<std::uint16_t, 1>(rows, stride, first, last, tile);
  pack<std::uint16_t, 2>(rows, stride, first, last, tile);
}

}  // namespace ops_transformer
