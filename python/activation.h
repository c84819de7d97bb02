// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "ops_transformer/gemm/activation.h"

namespace ops_transformer::python {

/// Throws InvalidArgument for a name that none has.
Activation activation_from_name(std::string_view operation, std::string_view name);

}  // namespace ops_transformer::python
