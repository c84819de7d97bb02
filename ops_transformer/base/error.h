// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>
#include <string>

#include "ops_transformer/base/export.h"

namespace ops_transformer {

/// An argument of a call is wrong. The message names the argument, its value and the limit; nothing has been written.
/// Python sees ValueError.
class OPS_TRANSFORMER_API InvalidArgument : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

/// A file, or data that came from outside, is not what it claims to be. The message names the part, what was needed and
/// what is there.
class OPS_TRANSFORMER_API InvalidFile : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A bounded resource (pages of a KV pool, context length) has run out; the object that reported it is still usable.
class OPS_TRANSFORMER_API ResourceExhausted : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The system refused something (a file that can't be opened, memory that can't be mapped).
class OPS_TRANSFORMER_API SystemFailure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace ops_transformer
