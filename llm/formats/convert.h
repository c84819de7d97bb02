// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>

#include "llm/formats/model_file.h"

namespace ops_transformer::llm {

struct ConvertOptions {
  /// Type of the matrices: one of f32, f16, bf16, q8_0, q4_0, q4_1 (rounded to nearest). Unset: as they are. Vectors
  /// keep theirs, as do tensors that are quantised already and are not to become f32, f16 or bf16; rows that are no
  /// multiple of the type's block become f16.
  std::optional<DType> dtype{};
  bool overwrite = false;
  /// Called with (bytes written, bytes in all). What it throws ends the conversion.
  std::function<void(std::size_t, std::size_t)> progress{};
};

struct ConvertResult {
  std::size_t bytes = 0;  // of the written file
  std::size_t num_tensors = 0;
  std::size_t num_fallbacks = 0;  // matrices that became f16
};

/// Writes a model as GGUF version 3. Whatever is thrown, and whenever the process ends, no half file stands under
/// `output`: the file is written beside it and takes its name when it is complete.
/// Throws InvalidArgument (another dtype; quantised tensors would be quantised again; `output` is there and not to be
/// overwritten, or is no regular file), InvalidFile (a value that the type can't hold) or SystemFailure (can't be
/// written, no space).
OPS_TRANSFORMER_API ConvertResult convert_to_gguf(const ModelFile& model, const std::string& output,
                                                  const ConvertOptions& options = {});

}  // namespace ops_transformer::llm
