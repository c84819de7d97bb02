// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "cli/command.h"

namespace ops_transformer::cli {

/// A comparison of two ways to compute the same at growing sizes is JSON:
///   title, facts (a line of text), size_name, sides ([before, after]: names),
///   points: [{size, <side>: {seconds, peak_memory_bytes, bytes_moved} or {refused: why}} for each side]
void print_table(const Json& comparison);

/// A page of its own: charts of time and memory over the size, and the table. No script, nothing fetched; light or dark
/// as the reader's system is.
std::string html_page(const Json& comparison);

}  // namespace ops_transformer::cli
