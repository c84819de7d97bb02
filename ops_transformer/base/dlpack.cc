// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/base/dlpack.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "ops_transformer/base/validate.h"

namespace ops_transformer {
namespace {

constexpr const char* kOp = "from_dlpack";
constexpr std::uint8_t kDlpackBool = 6;  // later than header 0.6

struct TypePair {
  DType dtype;
  std::uint8_t code, bits;
};
constexpr TypePair kTypes[] = {
    {DType::f32, kDLFloat, 32}, {DType::f16, kDLFloat, 16},       {DType::bf16, kDLBfloat, 16},
    {DType::s8, kDLInt, 8},     {DType::u8, kDLUInt, 8},          {DType::i32, kDLInt, 32},
    {DType::i64, kDLInt, 64},   {DType::boolean, kDlpackBool, 8},
};

// |(size - 1) * stride| summed over the dimensions must stay addressable.
void check_reach(std::string_view name, const TensorView& view) {
  std::int64_t elements = 1, reach = 0;
  bool good = true;
  for (int dim = 0; dim < view.rank(); ++dim) {
    if (view.size(dim) == 0) return;
    std::int64_t step = 0, span = 0;
    good &= !__builtin_mul_overflow(elements, view.size(dim), &elements);
    good &= !__builtin_mul_overflow(view.size(dim) - 1, view.stride(dim), &span);
    good &= !__builtin_sub_overflow(std::int64_t{0}, span, &step);
    good &= !__builtin_add_overflow(reach, std::max(span, step), &reach);
  }
  const auto limit = std::int64_t(PTRDIFF_MAX / 16);
  if (!good || elements > limit || reach > limit) {
    invalid(kOp, fmt::format("{} is {}, whose extents must stay within {} elements", name, describe(view), limit));
  }
}

}  // namespace

TensorView from_dlpack(const DLTensor& tensor, std::string_view name) {
  if (tensor.device.device_type != kDLCPU) {
    invalid(kOp, fmt::format("{} is on device type {}, must be on the CPU ({})", name, int(tensor.device.device_type),
                             int(kDLCPU)));
  }
  if (tensor.ndim < 0 || tensor.ndim > kMaxRank) {
    invalid(kOp, fmt::format("{} has {} dimensions, must have 0 to {}", name, tensor.ndim, kMaxRank));
  }
  const auto* type = std::ranges::find_if(kTypes, [&](const TypePair& pair) {
    return pair.code == tensor.dtype.code && pair.bits == tensor.dtype.bits && tensor.dtype.lanes == 1;
  });
  if (type == std::end(kTypes)) {
    invalid(kOp, fmt::format("{} has DLPack type (code {}, bits {}, lanes {}), must be f32, f16, bf16, s8, u8, i32, "
                             "i64 or bool with one lane",
                             name, tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes));
  }
  const auto rank = std::size_t(tensor.ndim);
  if (rank && !tensor.shape) invalid(kOp, fmt::format("{} has no shape", name));
  const std::span<const std::int64_t> shape(tensor.shape, rank);
  for (const std::int64_t size : shape) {
    if (size < 0) invalid(kOp, fmt::format("{} has a dimension of {}, must be >= 0", name, size));
  }
  // Row-major where there are no strides; a product that overflows is refused below, so it may wrap here.
  std::array<std::int64_t, kMaxRank> strides{};
  std::uint64_t next = 1;
  for (std::size_t i = rank; i-- > 0;) {
    strides[i] = tensor.strides ? tensor.strides[i] : std::int64_t(next);
    next *= std::uint64_t(shape[i]);
  }
  void* data = static_cast<std::byte*>(tensor.data) + (tensor.data ? tensor.byte_offset : 0);
  const TensorView view(data, type->dtype, shape, {strides.data(), rank});
  check_reach(name, view);
  const bool empty = std::ranges::find(shape, 0) != shape.end();
  if (!data && !empty) invalid(kOp, fmt::format("{} has no data", name));
  if (reinterpret_cast<std::uintptr_t>(data) % element_bytes(type->dtype) != 0) {
    invalid(kOp, fmt::format("{}'s data must be aligned to {} bytes", name, element_bytes(type->dtype)));
  }
  return view;
}

DlpackView::DlpackView(const ConstTensorView& view) {
  const auto* type = std::ranges::find(kTypes, view.dtype(), &TypePair::dtype);
  if (type == std::end(kTypes)) {
    invalid("DlpackView", fmt::format("dtype is {}, which DLPack can't express", dtype_name(view.dtype())));
  }
  std::ranges::copy(view.shape(), shape_.begin());
  std::ranges::copy(view.strides(), strides_.begin());
  tensor_.data = const_cast<void*>(view.data());
  tensor_.device = {kDLCPU, 0};
  tensor_.ndim = view.rank();
  tensor_.dtype = {type->code, type->bits, 1};
  tensor_.shape = shape_.data();
  tensor_.strides = strides_.data();
}

}  // namespace ops_transformer
