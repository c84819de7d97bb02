// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "llm/formats/gguf_metadata.h"
#include "llm/formats/mapped_file.h"
#include "ops_transformer/base/dtype.h"
#include "ops_transformer/base/error.h"
#include "ops_transformer/base/export.h"

namespace ops_transformer::llm {

/// A tensor of a model file. Everything here was checked against the file's size.
struct ModelTensor {
  std::string_view name;
  DType dtype;
  std::size_t rank;                 // 1 … 4
  std::array<std::size_t, 4> dims;  // row-major, slowest first
  std::size_t num_elements;
  std::size_t bytes;
  std::size_t file;          // index of the mapped file that holds it
  std::size_t offset;        // of the first byte there, from the start of that file
  std::size_t stored_bytes;  // there; other than `bytes` only where the tensor is made from what is stored

  std::span<const std::size_t> shape() const noexcept { return {dims.data(), rank}; }
  /// Rows and columns with the leading dimensions folded into the rows: what a weight matrix is packed from.
  std::size_t cols() const noexcept { return dims[rank - 1]; }
  std::size_t rows() const noexcept { return num_elements / cols(); }
};

/// Makes a tensor in GGUF's layout of its stored bytes: (stored, out).
using TensorMaker = std::function<void(std::span<const std::byte>, std::span<std::byte>)>;

/// What a reader of one format finds in a model's files.
struct ModelFileParts {
  std::string path;
  std::string format;  // "GGUF version 3"
  std::vector<MappedFile> files;
  GgufMetadata metadata;
  std::vector<ModelTensor> tensors;
  std::vector<TensorMaker> makers{};  // one for each tensor, null where it is stored as it is wanted; empty: no such
  std::list<std::string> owned{};     // names, and bytes of borrowed files, that lie in no file
};

/// A model as it lies on disk, whatever its format: metadata under GGUF's keys, tensors under GGUF's names and in
/// GGUF's layout. Formats: GGUF, version 2 or 3, little-endian
/// (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md), and folders of safetensors as Transformers writes them
/// (config.json, tokenizer.json, model.safetensors or its shards and their index). Files are untrusted: every count,
/// length and offset is checked against the bytes that are there before it is used; memory used is a small multiple of
/// the number of entries that really are in the file.
class OPS_TRANSFORMER_API ModelFile {
 public:
  /// A GGUF file; a folder, or a .safetensors file in one. Throws SystemFailure (can't be opened or mapped) or
  /// InvalidFile (names the part, what was needed, what is there).
  static ModelFile open(const std::string& path);
  /// Reads a GGUF file that lies in memory; `bytes` must outlive the object and be aligned to 8.
  static ModelFile from_memory(std::span<const std::byte> bytes, std::string name = "memory");

  /// Throws InvalidFile where a tensor's name stands twice.
  explicit ModelFile(ModelFileParts parts);
  ModelFile(ModelFile&&) noexcept;
  ModelFile& operator=(ModelFile&&) noexcept;
  ~ModelFile();

  const std::string& path() const noexcept { return parts_.path; }
  /// The format's name and version, for people.
  const std::string& format() const noexcept { return parts_.format; }
  /// Bytes of all files together.
  std::size_t size() const noexcept;
  const GgufMetadata& metadata() const noexcept { return parts_.metadata; }

  /// All tensors in the file's order.
  std::span<const ModelTensor> tensors() const noexcept { return parts_.tensors; }
  /// The tensor, or null where the file has none.
  const ModelTensor* find_tensor(std::string_view name) const noexcept;
  /// The tensor; throws InvalidFile where the file has none.
  const ModelTensor& tensor(std::string_view name) const;
  /// Its place in tensors().
  std::size_t index_of(const ModelTensor& tensor) const noexcept {
    return std::size_t(&tensor - parts_.tensors.data());
  }
  /// The tensor's bytes, rows one after another. A tensor that is stored otherwise is made now, in memory that
  /// drop_pages frees.
  std::span<const std::byte> data(const ModelTensor& tensor) const;
  /// Copies out.size() bytes of a tensor, from `offset` of it on, without mapping their pages: for rows that are looked
  /// up now and then. Throws InvalidArgument (past the tensor's end) or SystemFailure (the file can't be read, or was
  /// cut).
  void read(const ModelTensor& tensor, std::size_t offset, std::span<std::byte> out) const;
  /// Gives the memory under a tensor back (a later read loads or makes it again), so that packing a whole model never
  /// holds file and packed weights at once. What data returned for it ends here.
  void drop_pages(const ModelTensor& tensor) const noexcept;

 private:
  struct Made;
  /// nullptr where the tensor is stored as it is wanted.
  const TensorMaker* maker_of(const ModelTensor& tensor) const noexcept;

  ModelFileParts parts_;
  std::vector<std::uint32_t> by_name_;
  std::unique_ptr<Made> made_;
};

}  // namespace ops_transformer::llm
