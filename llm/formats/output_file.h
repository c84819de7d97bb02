// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "ops_transformer/base/export.h"

namespace ops_transformer::llm {

/// A file that appears under its name when it is complete and not before; gone where it never is. Every function throws
/// SystemFailure where the system refuses.
class OPS_TRANSFORMER_API OutputFile {
 public:
  /// Makes the file beside `path` and reserves `size` bytes of space. Throws InvalidArgument where `path` is there and
  /// not to be overwritten, or is no regular file.
  OutputFile(const std::string& path, std::size_t size, bool overwrite);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(std::span<const std::byte> bytes);
  std::size_t written() const noexcept { return written_; }
  /// Gives the file its name.
  void finish();

 private:
  [[noreturn]] void fail(int error) const;
  void check_target() const;

  std::string path_, temporary_;
  bool overwrite_;
  int descriptor_ = -1;
  std::size_t written_ = 0;
};

}  // namespace ops_transformer::llm
