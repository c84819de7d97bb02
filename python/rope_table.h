// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <variant>

#include "ops_transformer/posembedding/rope.h"

namespace ops_transformer::python {

/// What `scaling=` takes.
using AnyScaling = std::variant<NtkScaling, Llama3Scaling, YarnScaling>;
RopeScaling scaling_of(const std::optional<AnyScaling>& scaling);

/// A model asks for one or two tables over and over; making one takes about a millisecond. Called with the GIL held.
std::shared_ptr<const RopeTable> table_for(const RopeOptions& options);

}  // namespace ops_transformer::python
