// SPDX-License-Identifier: Apache-2.0
#include "python/text.h"

namespace ops_transformer::python {

namespace nb = nanobind;

std::string Text::bytes() const {
  nb::object encoded = *this;
  if (PyUnicode_Check(ptr())) encoded = nb::steal(PyUnicode_AsEncodedString(ptr(), "utf-8", "surrogatepass"));
  if (!encoded.is_valid()) throw nb::python_error();
  if (!PyBytes_Check(encoded.ptr())) throw nb::type_error("text must be str or bytes");
  return {PyBytes_AS_STRING(encoded.ptr()), std::size_t(PyBytes_GET_SIZE(encoded.ptr()))};
}

nb::str to_str(std::string_view bytes) {
  nb::object text = nb::steal(PyUnicode_DecodeUTF8(bytes.data(), Py_ssize_t(bytes.size()), "replace"));
  if (!text.is_valid()) throw nb::python_error();
  return nb::borrow<nb::str>(text);
}

}  // namespace ops_transformer::python
