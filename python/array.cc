// SPDX-License-Identifier: Apache-2.0
#include "python/array.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include <algorithm>
#include <array>
#include <string>

#include "ops_transformer/base/error.h"
#include "ops_transformer/base/validate.h"
#include "python/output_memory.h"

namespace ops_transformer::python {
namespace {

using nb::dlpack::dtype_code;

constexpr nb::dlpack::dtype element(dtype_code code, std::uint8_t bits) { return {std::uint8_t(code), bits, 1}; }

struct ElementType {
  DType dtype;
  nb::dlpack::dtype dlpack;
};
constexpr ElementType kElementTypes[] = {
    {DType::f32, element(dtype_code::Float, 32)},   {DType::f16, element(dtype_code::Float, 16)},
    {DType::bf16, element(dtype_code::Bfloat, 16)}, {DType::bf16, element(dtype_code::UInt, 16)},
    {DType::s8, element(dtype_code::Int, 8)},       {DType::u8, element(dtype_code::UInt, 8)},
    {DType::i32, element(dtype_code::Int, 32)},     {DType::i64, element(dtype_code::Int, 64)},
    {DType::boolean, element(dtype_code::Bool, 8)},
};

/// The class, once its module is loaded by somebody; no import, so that torch stays optional.
class LazyType {
 public:
  constexpr LazyType(const char* module, const char* name) : module_(module), name_(name) {}
  bool matches(nb::handle object) {
    if (!type_) {
      PyObject* module = PyDict_GetItemString(PyImport_GetModuleDict(), module_);  // borrowed
      // A module that is being imported may not have the class yet.
      if (!module || !PyObject_HasAttrString(module, name_)) return false;
      type_ = PyObject_GetAttrString(module, name_);
    }
    return PyObject_IsInstance(object.ptr(), type_) == 1;
  }

 private:
  const char *module_, *name_;
  PyObject* type_ = nullptr;  // kept for the life of the process
};
LazyType torch_tensor("torch", "Tensor");
LazyType numpy_array("numpy", "ndarray");

// NumPy hands out its own element types only; kind V holds those of ml_dtypes.
bool is_numpy_bfloat16(nb::handle object) {
  if (!numpy_array.matches(object)) return false;
  const nb::object dtype = object.attr("dtype");
  return nb::cast<std::string_view>(dtype.attr("kind")) == "V" &&
         nb::cast<std::string_view>(dtype.attr("name")) == "bfloat16";
}

std::string describe_python(nb::handle object) {
  std::string text = nb::cast<std::string>(object.type().attr("__name__"));
  for (const auto& [attribute, joined] : {std::pair{"dtype", " of "}, std::pair{"device", " on "}}) {
    if (!nb::hasattr(object, attribute)) continue;
    const nb::object value = object.attr(attribute);
    text += joined + nb::cast<std::string>(nb::str(value));
  }
  return text;
}

template <class Result>
Result import_array(std::string_view operation, std::string_view name, nb::handle object) {
  Result result;
  result.source = nb::borrow(object);
  nb::object memory = result.source;
  if (torch_tensor.matches(object)) {
    // Results carry no gradient, and DLPack refuses what needs one.
    if (nb::cast<bool>(object.attr("requires_grad"))) memory = object.attr("detach")();
  } else if (is_numpy_bfloat16(object)) {
    memory = object.attr("view")("uint16");
  }
  if (!nb::try_cast(memory, result.handle, false)) {
    constexpr bool writable = std::is_same_v<Result, Output>;
    nb::ndarray<nb::ro, nb::device::cpu> readable;
    if (writable && nb::try_cast(memory, readable, false)) invalid(operation, fmt::format("{} is read-only", name));
    throw nb::type_error(
        fmt::format("{}: {} must be an array of numbers in CPU memory (NumPy, PyTorch, DLPack), got {}", operation,
                    name, describe_python(object))
            .c_str());
  }
  const auto& array = result.handle;
  if (array.ndim() > std::size_t(kMaxRank)) {
    invalid(operation, fmt::format("{} has {} dimensions, must have at most {}", name, array.ndim(), kMaxRank));
  }
  for (const ElementType& type : kElementTypes) {
    if (type.dlpack == array.dtype()) {
      const std::span shape(array.shape_ptr(), array.ndim()), strides(array.stride_ptr(), array.ndim());
      result.view = {array.data(), type.dtype, shape, strides};
      // Without elements the strides mean nothing, and NumPy fills them with zeros.
      if (result.view.num_elements() == 0) result.view = {array.data(), type.dtype, shape};
      return result;
    }
  }
  invalid(operation, fmt::format("{} is {}, an element type that no operator has", name, describe_python(object)));
}

bool leading_dims_merge(const ConstTensorView& view) {
  std::int64_t expected = 0;  // no dimension longer than 1 seen yet
  for (int dim = view.rank() - 2; dim >= 0; --dim) {
    if (view.size(dim) == 1) continue;
    if (expected != 0 && view.stride(dim) != expected) return false;
    expected = view.stride(dim) * view.size(dim);
  }
  return true;
}

nb::dlpack::dtype dlpack_type(DType dtype) {
  return std::ranges::find(kElementTypes, dtype, &ElementType::dtype)->dlpack;
}

/// Memory of a fresh output, to be shown as an array of one library or another.
class Memory {
 public:
  Memory(DType dtype, std::span<const std::int64_t> shape)
      : memory_(
            take_output_memory(std::size_t(TensorView(nullptr, dtype, shape).num_elements()) * element_bytes(dtype))),
        view_(memory_.data, dtype, shape) {
    std::ranges::copy(shape, extents_.begin());
  }

  template <class Framework>
  Output as(nb::dlpack::dtype type) const {
    Output result;
    result.view = view_;
    result.source = nb::cast(nb::ndarray<Framework>(memory_.data, std::size_t(view_.rank()), extents_.data(),
                                                    memory_.owner, nullptr, type, nb::device::cpu::value));
    return result;
  }

 private:
  OutputMemory memory_;
  TensorView view_;
  std::array<std::size_t, kMaxRank> extents_{};
};

}  // namespace

Input import_input(std::string_view operation, std::string_view name, nb::handle object) {
  return import_array<Input>(operation, name, object);
}

std::optional<Input> import_input(std::string_view operation, std::string_view name,
                                  const std::optional<ArrayArgument>& object) {
  if (!object) return std::nullopt;
  return import_input(operation, name, nb::handle(*object));
}

Output import_output(std::string_view operation, std::string_view name, nb::handle object) {
  return import_array<Output>(operation, name, object);
}

Output new_array(const Input& like, DType dtype, std::span<const std::int64_t> shape) {
  const Memory memory(dtype, shape);
  if (torch_tensor.matches(like.source)) return memory.as<nb::pytorch>(dlpack_type(dtype));
  if (dtype != DType::bf16) return memory.as<nb::numpy>(dlpack_type(dtype));
  Output result = memory.as<nb::numpy>(element(dtype_code::UInt, 16));
  if (is_numpy_bfloat16(like.source)) {
    result.source = result.source.attr("view")(like.source.attr("dtype"));
  } else if (like.handle.dtype() != element(dtype_code::UInt, 16)) {
    result.source = result.source.attr("view")(nb::module_::import_("ml_dtypes").attr("bfloat16"));
  }
  return result;
}

Output new_numpy_array(std::span<const std::int64_t> shape) {
  return Memory(DType::f32, shape).as<nb::numpy>(dlpack_type(DType::f32));
}

Output output_or_new(std::string_view operation, std::string_view name, const std::optional<ArrayOfKind>& out,
                     const Input& like, DType dtype, std::span<const std::int64_t> shape) {
  return out ? import_output(operation, name, *out) : new_array(like, dtype, shape);
}

void check_same_shape(std::string_view operation, std::string_view name, const ConstTensorView& view,
                      std::span<const std::int64_t> shape) {
  if (!std::ranges::equal(view.shape(), shape)) {
    invalid(operation, fmt::format("{} must be [{}], got {}", name, fmt::join(shape, ", "), describe(view)));
  }
}

Matrices::Matrices(std::string_view operation, std::string_view name, std::span<const std::int64_t> shape,
                   std::initializer_list<ConstTensorView> views) {
  if (shape.empty()) invalid(operation, fmt::format("{} must have at least one dimension", name));
  std::int64_t leading = 1;
  for (std::int64_t size : shape.first(shape.size() - 1)) leading *= size;
  bool merge = true;
  for (const ConstTensorView& view : views) merge &= leading == 0 || leading_dims_merge(view);
  rows_ = merge ? leading : shape[shape.size() - 2];
  count_ = merge ? 1 : leading / rows_;
}

Matrices::Place Matrices::locate(const ConstTensorView& view, std::int64_t index) const {
  Place place{0, view.size(view.rank() - 1)};
  int dim = view.rank() - 2;
  if (count_ > 1) {
    place.row_stride = view.stride(dim--);
    std::int64_t elements = 0;
    for (; dim >= 0; --dim) {
      elements += index % view.size(dim) * view.stride(dim);
      index /= view.size(dim);
    }
    place.offset_bytes = elements * std::int64_t(element_bytes(view.dtype()));
  } else {
    while (dim >= 0 && view.size(dim) == 1) --dim;
    if (dim >= 0) place.row_stride = view.stride(dim);
  }
  return place;
}

}  // namespace ops_transformer::python
