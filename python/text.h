// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <string_view>

namespace ops_transformer::python {

/// A parameter that is text: str, or bytes that need not be UTF-8.
class Text : public nanobind::object {
 public:
  using nanobind::object::object;
  static constexpr auto Name = nanobind::detail::const_name("str | bytes");

  /// Lone surrogates of a str become the three bytes that UTF-8 would give them. Throws TypeError for other objects.
  std::string bytes() const;
};

/// U+FFFD stands for what is not UTF-8.
nanobind::str to_str(std::string_view bytes);

}  // namespace ops_transformer::python
