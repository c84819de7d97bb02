// SPDX-License-Identifier: Apache-2.0
#pragma once

// Included before all else in the fuzzers' sources: kernel tables without rows, so that what needs the tables, and no
// kernel in them, links without the kernels.
#include "ops_transformer/base/isa.h"

#undef OPS_TRANSFORMER_FILL_ROW
#define OPS_TRANSFORMER_FILL_ROW(name, Fn, level)
