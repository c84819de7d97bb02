// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include "llm/formats/mapped_file.h"
#include "ops_transformer/base/dtype.h"
#include "ops_transformer/base/export.h"

namespace ops_transformer::llm {

/// A tensor of a .safetensors file.
struct SafetensorsTensor {
  std::string name;
  DType dtype = DType::f32;
  std::size_t rank = 1;                   // 1 … 4; a scalar counts as one element
  std::array<std::size_t, 4> dims = {1};  // row-major, slowest first
  std::size_t num_elements = 1;
  std::size_t offset = 0;  // of the first byte, from the start of the file; of any alignment
  std::size_t bytes = 0;
};

/// The tensors of a .safetensors file, in the order of their data. The file is untrusted: lengths and offsets are
/// checked against the bytes that are there before they are used, tensors share no bytes and leave none unused, names
/// stand once, and a header that is not exactly of the format's form ends at its first wrong value.
/// Throws InvalidFile, which names the tensor. Format: https://github.com/huggingface/safetensors#format
OPS_TRANSFORMER_API std::vector<SafetensorsTensor> read_safetensors(const MappedFile& file);

}  // namespace ops_transformer::llm
