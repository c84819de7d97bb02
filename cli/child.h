// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "cli/command.h"

namespace ops_transformer::cli {

/// Runs this program with these words behind its name, so that what it measures of memory is its own; the JSON that it
/// prints. Throws InvalidArgument, InvalidFile or SystemFailure as the child failed.
Json run_in_child(std::vector<std::string> words);

}  // namespace ops_transformer::cli
