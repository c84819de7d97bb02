// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include "ops_transformer/base/dtype.h"
#include "ops_transformer/base/float16.h"

namespace ops_transformer::test {

template <class T>
consteval DType dtype_of() {
  if constexpr (std::is_same_v<T, float>) {
    return DType::f32;
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    return DType::bf16;
  } else {
    static_assert(std::is_same_v<T, Float16>);
    return DType::f16;
  }
}

/// The dtype of a float element type, for typed tests.
template <class T>
inline constexpr DType kDType = dtype_of<T>();

}  // namespace ops_transformer::test
