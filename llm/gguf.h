// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ops_transformer/base/dtype.h"
#include "ops_transformer/base/error.h"
#include "ops_transformer/base/export.h"

namespace ops_transformer::llm {

/// Types of a metadata value; the numbers are those of the file.
enum class GgufType : std::uint32_t { u8, i8, u16, i16, u32, i32, f32, boolean, string, array, u64, i64, f64 };
inline constexpr std::uint32_t kNumGgufTypes = 13;

/// A metadata entry. Views point into the file: they live as long as the GgufFile.
struct GgufEntry {
  std::string_view key;
  GgufType type;                     // `array` for arrays
  GgufType element_type;             // type of an array's elements; equals `type` otherwise
  std::size_t length;                // elements of an array; 1 otherwise
  std::span<const std::byte> bytes;  // the value as stored (little-endian, strings with their length)
};

/// The entries of a file by key. Every getter throws InvalidFile, naming the key, where the stored type or range does
/// not fit T. T: bool, int32_t, uint32_t, int64_t, uint64_t (any stored integer in range), float, double (any stored
/// float or integer), std::string_view, std::string, and std::vector of int32_t, uint32_t, float, bool, string_view.
class OPS_TRANSFORMER_API GgufMetadata {
 public:
  /// The entry, or null where the file has none.
  const GgufEntry* find(std::string_view key) const noexcept;
  /// The value; nothing where the file has none.
  template <class T>
  std::optional<T> get(std::string_view key) const;
  /// The value, or `fallback` where the file has none.
  template <class T>
  T get_or(std::string_view key, T fallback) const;
  /// The value; throws InvalidFile where the file has none.
  template <class T>
  T require(std::string_view key) const;
  /// All entries in the file's order.
  std::span<const GgufEntry> entries() const noexcept { return entries_; }

 private:
  friend class GgufParser;
  std::vector<GgufEntry> entries_;
  std::vector<std::uint32_t> by_key_;
};

/// Text of a value for people: control characters escaped, long strings and arrays cut after `max_len` characters.
OPS_TRANSFORMER_API std::string gguf_value_text(const GgufEntry& entry, std::size_t max_len = 80);

/// A tensor of the file. Everything here was checked against the file's size.
struct GgufTensor {
  std::string_view name;
  DType dtype;
  std::size_t rank;                 // 1 … 4
  std::array<std::size_t, 4> dims;  // row-major, slowest first (the file stores them fastest first)
  std::size_t num_elements;
  std::size_t offset;  // of the first byte, from the start of the file
  std::size_t bytes;

  std::span<const std::size_t> shape() const noexcept { return {dims.data(), rank}; }
  /// Rows and columns with the leading dimensions folded into the rows: what a weight matrix is packed from.
  std::size_t cols() const noexcept { return dims[rank - 1]; }
  std::size_t rows() const noexcept { return num_elements / cols(); }
};

/// A GGUF file, version 2 or 3, little-endian, mapped read-only. The file is untrusted: every count, length and offset
/// is checked against the bytes that are there before it is used; memory used is a small multiple of the number of
/// entries that really are in the file. Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md A file that
/// another process cuts while it is mapped raises SIGBUS in the reader, as with any mapping.
class OPS_TRANSFORMER_API GgufFile {
 public:
  /// Throws SystemFailure (can't be opened or mapped) or InvalidFile (names the part, what was needed, what is there).
  static GgufFile open(const std::string& path);
  /// Reads a file that lies in memory; `bytes` must outlive the object and be aligned to 8.
  static GgufFile from_memory(std::span<const std::byte> bytes, std::string name = "memory");

  GgufFile(GgufFile&& other) noexcept;
  GgufFile& operator=(GgufFile&& other) noexcept;
  ~GgufFile();

  const std::string& path() const noexcept { return path_; }
  std::uint32_t version() const noexcept { return version_; }
  std::size_t size() const noexcept { return bytes_.size(); }
  std::size_t alignment() const noexcept { return alignment_; }
  const GgufMetadata& metadata() const noexcept { return metadata_; }

  /// All tensors in the file's order.
  std::span<const GgufTensor> tensors() const noexcept { return tensors_; }
  /// The tensor, or null where the file has none.
  const GgufTensor* find_tensor(std::string_view name) const noexcept;
  /// The tensor; throws InvalidFile where the file has none.
  const GgufTensor& tensor(std::string_view name) const;
  /// The tensor's bytes in the file.
  std::span<const std::byte> data(const GgufTensor& tensor) const noexcept {
    return bytes_.subspan(tensor.offset, tensor.bytes);
  }
  /// Copies out.size() bytes of a tensor, from `offset` of it on, without mapping their pages: for rows that are looked
  /// up now and then. Throws InvalidArgument (past the tensor's end) or SystemFailure (the file can't be read, or was
  /// cut).
  void read(const GgufTensor& tensor, std::size_t offset, std::span<std::byte> out) const;
  /// Gives the pages under a tensor back (a later read loads them again), so that packing a whole model never holds
  /// file and packed weights at once. Nothing to do for a file in memory.
  void drop_pages(const GgufTensor& tensor) const noexcept;

 private:
  friend class GgufParser;
  GgufFile() = default;
  std::string path_;
  std::span<const std::byte> bytes_;
  int descriptor_ = -1;  // open while mapped; -1 for a file in memory
  std::uint32_t version_ = 0;
  std::size_t alignment_ = 32;
  GgufMetadata metadata_;
  std::vector<GgufTensor> tensors_;
  std::vector<std::uint32_t> by_name_;
};

}  // namespace ops_transformer::llm
