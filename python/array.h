// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "ops_transformer/base/context.h"
#include "ops_transformer/base/tensor_view.h"

// Arrays of Python as tensor views, without copies. bf16 comes as torch.bfloat16, as ml_dtypes.bfloat16 or as the raw
// bits in a uint16 array.
namespace ops_transformer::python {

namespace nb = nanobind;

/// Parameters and results that hold arrays; the names are those of the stubs (ops_transformer/_array.py). The result is
/// the kind of array that the first argument is.
class ArrayArgument : public nb::object {
 public:
  using nb::object::object;
  static constexpr auto Name = nb::detail::const_name("Array");
};
class ArrayOfKind : public nb::object {
 public:
  using nb::object::object;
  explicit ArrayOfKind(nb::object array) : nb::object(std::move(array)) {}
  static constexpr auto Name = nb::detail::const_name("ArrayT");
};

/// An array that was passed in: a view of its memory, and what keeps that memory alive.
template <class View, class Handle>
struct Imported {
  nb::object source;  // as the caller passed it; fresh outputs follow its kind
  Handle handle;
  View view;
};
using Input = Imported<ConstTensorView, nb::ndarray<nb::ro, nb::device::cpu>>;
using Output = Imported<TensorView, nb::ndarray<nb::device::cpu>>;

/// Throws TypeError where the object is no array in CPU memory, ValueError for an element type the library lacks;
/// read-only memory is accepted.
Input import_input(std::string_view operation, std::string_view name, nb::handle object);
std::optional<Input> import_input(std::string_view operation, std::string_view name,
                                  const std::optional<ArrayArgument>& object);
/// As import_input, and ValueError where the array is read-only.
Output import_output(std::string_view operation, std::string_view name, nb::handle object);

/// A fresh array of the kind of `like` (torch in, torch out; everything else gives NumPy); its contents are undefined.
Output new_array(const Input& like, DType dtype, std::span<const std::int64_t> shape);
/// The same as f32 for NumPy.
Output new_numpy_array(std::span<const std::int64_t> shape);

/// `out` where it is given, else a fresh array.
Output output_or_new(std::string_view operation, std::string_view name, const std::optional<ArrayOfKind>& out,
                     const Input& like, DType dtype, std::span<const std::int64_t> shape);

/// The shape has to be exactly this one. Throws InvalidArgument.
void check_same_shape(std::string_view operation, std::string_view name, const ConstTensorView& view,
                      std::span<const std::int64_t> shape);

/// Splits tensors of one shape [..., n] into matrices [rows, n] for operators that work on rows: one matrix where the
/// strides of all of them let the leading dimensions merge, else one for each index of the dimensions before the last
/// two. Throws InvalidArgument, naming the first of them, where there is no dimension.
class Matrices {
 public:
  Matrices(std::string_view operation, std::string_view name, std::span<const std::int64_t> shape,
           std::initializer_list<ConstTensorView> views);

  std::int64_t count() const { return count_; }

  template <class View>
  View at(const View& view, std::int64_t index) const {
    const Place place = locate(view, index);
    const std::int64_t columns = view.size(view.rank() - 1);
    return View(view.template as<std::byte>() + place.offset_bytes, view.dtype(), {rows_, columns},
                {place.row_stride, view.stride(view.rank() - 1)});
  }

 private:
  struct Place {
    std::int64_t offset_bytes, row_stride;
  };
  Place locate(const ConstTensorView& view, std::int64_t index) const;

  std::int64_t count_, rows_;
};

inline Context& context_or_default(Context* context) { return context ? *context : Context::process_default(); }

}  // namespace ops_transformer::python
