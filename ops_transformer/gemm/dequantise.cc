// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/gemm/dequantise.h"

#include <fmt/format.h>

#include <cstring>

#include "ops_transformer/base/float16.h"
#include "ops_transformer/base/validate.h"
#include "ops_transformer/gemm/quantised_weights.h"

namespace ops_transformer {
namespace {

template <class T>
void widen(const void* rows, std::int64_t n, float* out) noexcept {
  const auto* bytes = static_cast<const std::uint8_t*>(rows);
  for (std::int64_t i = 0; i < n; ++i) {
    T value;
    std::memcpy(&value, bytes + i * std::int64_t(sizeof(T)), sizeof(T));
    out[i] = to_float(value);
  }
}

// Scale times sub-scale times code has at most 24 significant bits: the sum with a minimum is the only rounding.
void dequantise_block(const WeightForm& form, const WeightBlock& block, float* out) noexcept {
  std::uint8_t codes[256];
  std::memcpy(codes, block.codes, std::size_t(form.block_len));
  float scale = to_float(block.scale), minimum = form.has_minimum ? to_float(block.minimum) : 0.0f;
  for (int sub = 0; sub < form.num_subs(); ++sub) {
    const float sub_scale = form.sub_scale_bits ? scale * float(block.sub_scales[sub]) : scale;
    const float sub_minimum = form.sub_scale_bits ? minimum * float(block.sub_minima[sub]) : minimum;
    for (int i = sub * form.sub_len; i < (sub + 1) * form.sub_len; ++i) {
      const float value = sub_scale * float(int(codes[i]) - form.zero);
      out[i] = form.has_minimum ? value + sub_minimum : value;  // 0 more would lose the sign of -0
    }
  }
}

}  // namespace

void dequantise_rows(DType dtype, const void* rows, std::int64_t num_elements, float* out) {
  const auto block_len = std::int64_t(dtype_info(dtype).block_len);
  if (num_elements < 0 || num_elements % block_len != 0) {
    invalid("dequantise_rows", fmt::format("num_elements is {}, must be a multiple of {} for {}", num_elements,
                                           block_len, dtype_name(dtype)));
  }
  if (dtype == DType::f32) return widen<float>(rows, num_elements, out);
  if (dtype == DType::bf16) return widen<BFloat16>(rows, num_elements, out);
  if (dtype == DType::f16) return widen<Float16>(rows, num_elements, out);
  if (!is_block_quantised(dtype)) {
    invalid("dequantise_rows",
            fmt::format("dtype is {}, must be f32, bf16, f16 or block-quantised", dtype_name(dtype)));
  }
  const WeightForm form = weight_form(dtype);
  const auto* bytes = static_cast<const std::byte*>(rows);
  WeightBlock block{};
  for (std::int64_t i = 0; i < num_elements; i += block_len, bytes += dtype_info(dtype).block_bytes) {
    read_block(dtype, bytes, block);
    dequantise_block(form, block, out + i);
  }
}

}  // namespace ops_transformer
