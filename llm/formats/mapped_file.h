// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "ops_transformer/base/export.h"

namespace ops_transformer::llm {

/// A regular file mapped read-only, or bytes that lie in memory. A file that another process cuts while it is mapped
/// raises SIGBUS in the reader, as with any mapping.
class OPS_TRANSFORMER_API MappedFile {
 public:
  /// Throws SystemFailure: can't be opened or mapped, or is no regular file (a pipe is refused, not waited for).
  static MappedFile open(const std::string& path);
  /// `bytes` must outlive the object.
  static MappedFile borrow(std::span<const std::byte> bytes, std::string name);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  const std::string& path() const noexcept { return path_; }
  std::span<const std::byte> bytes() const noexcept { return bytes_; }
  /// Copies out.size() bytes from `offset` on without mapping their pages. Throws SystemFailure, naming `part`, where
  /// the file can't be read or was cut.
  void read(std::size_t offset, std::span<std::byte> out, std::string_view part) const;
  /// Gives the pages under these bytes back; a later read loads them again. Nothing to do for bytes in memory.
  void drop_pages(std::size_t offset, std::size_t size) const noexcept;

 private:
  MappedFile() = default;
  std::string path_;
  std::span<const std::byte> bytes_;
  int descriptor_ = -1;  // open while mapped; -1 for bytes in memory
};

}  // namespace ops_transformer::llm
