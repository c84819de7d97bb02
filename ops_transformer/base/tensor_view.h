// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <type_traits>

#include "ops_transformer/base/dtype.h"
#include "ops_transformer/base/float16.h"

namespace ops_transformer {

inline constexpr int kMaxRank = 8;

/// Sizes of an untrusted shape may multiply past 2^63: it names memory that can't exist, and what checks it compares
/// sizes one by one.
constexpr std::int64_t wrapping_product(std::int64_t a, std::int64_t b) {
  return std::int64_t(std::uint64_t(a) * std::uint64_t(b));
}

/// Throws InvalidArgument where a view can't have so many dimensions, or strides don't match them in number.
OPS_TRANSFORMER_API int checked_rank(std::size_t num_sizes, std::size_t num_strides);

/// A tensor that somebody else owns: pointer, dtype, shape and strides. Strides count elements (for block-quantised
/// types: the last dimension is contiguous and its stride is 1). `Byte` is std::byte or const std::byte. Making one
/// throws InvalidArgument past kMaxRank dimensions, and where there are not as many strides.
template <class Byte>
class BasicTensorView {
 public:
  using Pointer = std::conditional_t<std::is_const_v<Byte>, const void*, void*>;

  BasicTensorView() = default;

  /// Row-major contiguous.
  BasicTensorView(Pointer data, DType dtype, std::span<const std::int64_t> shape)
      : data_(data), dtype_(dtype), rank_(checked_rank(shape.size(), shape.size())) {
    std::int64_t stride = 1;
    for (int i = rank_ - 1; i >= 0; --i) {
      shape_[i] = shape[i];
      strides_[i] = stride;
      stride = wrapping_product(stride, shape[i]);
    }
  }
  BasicTensorView(Pointer data, DType dtype, std::initializer_list<std::int64_t> shape)
      : BasicTensorView(data, dtype, std::span(shape.begin(), shape.size())) {}

  BasicTensorView(Pointer data, DType dtype, std::span<const std::int64_t> shape, std::span<const std::int64_t> strides)
      : data_(data), dtype_(dtype), rank_(checked_rank(shape.size(), strides.size())) {
    for (int i = 0; i < rank_; ++i) {
      shape_[i] = shape[i];
      strides_[i] = strides[i];
    }
  }
  BasicTensorView(Pointer data, DType dtype, std::initializer_list<std::int64_t> shape,
                  std::initializer_list<std::int64_t> strides)
      : BasicTensorView(data, dtype, std::span(shape.begin(), shape.size()),
                        std::span(strides.begin(), strides.size())) {}

  /// A writable view is readable.
  template <class Other>
    requires(std::is_const_v<Byte> && !std::is_const_v<Other>)
  BasicTensorView(const BasicTensorView<Other>& other)
      : BasicTensorView(other.data(), other.dtype(), other.shape(), other.strides()) {}

  Pointer data() const { return data_; }
  DType dtype() const { return dtype_; }
  int rank() const { return rank_; }
  std::int64_t size(int dim) const { return shape_[dim]; }
  std::int64_t stride(int dim) const { return strides_[dim]; }
  std::span<const std::int64_t> shape() const { return {shape_.data(), std::size_t(rank_)}; }
  std::span<const std::int64_t> strides() const { return {strides_.data(), std::size_t(rank_)}; }

  std::int64_t num_elements() const {
    std::int64_t n = 1;
    for (int i = 0; i < rank_; ++i) n = wrapping_product(n, shape_[i]);
    return n;
  }

  template <class T>
  auto as() const {
    return static_cast<std::conditional_t<std::is_const_v<Byte>, const T*, T*>>(data_);
  }

  /// The last dimension is contiguous (or has at most one element).
  bool rows_contiguous() const { return rank_ == 0 || shape_[rank_ - 1] <= 1 || strides_[rank_ - 1] == 1; }
  bool contiguous() const {
    if (num_elements() == 0) return true;
    std::int64_t expected = 1;
    for (int i = rank_ - 1; i >= 0; --i) {
      if (shape_[i] > 1 && strides_[i] != expected) return false;
      expected = wrapping_product(expected, shape_[i]);
    }
    return true;
  }

 private:
  Pointer data_ = nullptr;
  DType dtype_ = DType::f32;
  int rank_ = 0;
  std::array<std::int64_t, kMaxRank> shape_{};
  std::array<std::int64_t, kMaxRank> strides_{};
};

using TensorView = BasicTensorView<std::byte>;
using ConstTensorView = BasicTensorView<const std::byte>;

/// "[2, 3, 64] f32", for messages.
OPS_TRANSFORMER_API std::string describe(const ConstTensorView& view);

/// First and one-past-last byte that the view can touch; {nullptr, nullptr} for an empty view, all of memory for one
/// that reaches past the ends of it.
struct ByteRange {
  const std::byte* begin;
  const std::byte* end;
};
OPS_TRANSFORMER_API ByteRange byte_range(const ConstTensorView& view);
OPS_TRANSFORMER_API bool overlaps(const ConstTensorView& a, const ConstTensorView& b);

/// Both are the same elements at the same addresses, so that an operator may read one while it writes the other.
OPS_TRANSFORMER_API bool same_place(const ConstTensorView& a, const ConstTensorView& b);

}  // namespace ops_transformer
