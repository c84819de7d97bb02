// SPDX-License-Identifier: Apache-2.0
#pragma once

// Marks what the shared library exports; everything else is hidden.
#define OPS_TRANSFORMER_API __attribute__((visibility("default")))
