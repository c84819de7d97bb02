// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>

namespace ops_transformer::python {

/// Memory of a fresh output; `owner` gives it back when the last array that uses it dies.
struct OutputMemory {
  void* data;
  nanobind::capsule owner;
};

/// 64-byte aligned, contents undefined. Blocks of 1 MiB and more are kept for the next output of about that size, at
/// most kMaxIdleOutputBytes of them: a fresh page costs more than most operators spend on writing it. Throws
/// std::bad_alloc. Called with the GIL held.
OutputMemory take_output_memory(std::size_t bytes);

inline constexpr std::size_t kMaxIdleOutputBytes = std::size_t{256} << 20;

/// Bytes that wait to be used again.
std::size_t idle_output_bytes();

}  // namespace ops_transformer::python
