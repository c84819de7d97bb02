// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ops_transformer/base/dtype.h"

namespace ops_transformer::test {

/// Bytes at an address aligned to 8, as ModelFile::from_memory wants them.
class AlignedBytes {
 public:
  AlignedBytes() = default;
  explicit AlignedBytes(std::string_view text) : words_((text.size() + 7) / 8), size_(text.size()) {
    if (size_ > 0) std::memcpy(words_.data(), text.data(), size_);
  }
  std::span<const std::byte> span() const noexcept { return std::as_bytes(std::span(words_)).first(size_); }

 private:
  std::vector<std::uint64_t> words_;
  std::size_t size_ = 0;
};

/// Writes GGUF files, right ones and wrong ones: `bytes()` puts together what was added; the counts of the header and
/// the raw sections can be replaced by lies.
class GgufWriter {
 public:
  explicit GgufWriter(std::uint32_t version = 3) : version_(version) {}

  GgufWriter& add_string(std::string_view key, std::string_view value);
  GgufWriter& add_u32(std::string_view key, std::uint32_t value) { return add_scalar(key, 4, value); }
  GgufWriter& add_f32(std::string_view key, float value) { return add_scalar(key, 6, value); }
  GgufWriter& add_bool(std::string_view key, bool value) {
    return add_scalar(key, 7, static_cast<std::uint8_t>(value));
  }
  /// A value of any type: `type` is the id in the file, T its representation.
  template <class T>
  GgufWriter& add_scalar(std::string_view key, std::uint32_t type, T value) {
    return add_raw(key, type, raw(value));
  }
  GgufWriter& add_strings(std::string_view key, const std::vector<std::string>& values);
  template <class T>
  GgufWriter& add_array(std::string_view key, std::uint32_t element_type, const std::vector<T>& values) {
    std::string value = raw(element_type) + raw<std::uint64_t>(values.size());
    for (const T& v : values) value += raw(v);
    return add_raw(key, 9, value);
  }
  GgufWriter& add_raw(std::string_view key, std::uint32_t type, std::string_view value);

  /// `dims` row-major; the data is laid down at the next multiple of the alignment.
  GgufWriter& add_tensor(std::string_view name, DType dtype, const std::vector<std::uint64_t>& dims,
                         std::string_view data);
  /// A tensor's description as it stands in the file (dims fastest first), without data.
  GgufWriter& add_tensor_raw(std::string_view name, const std::vector<std::uint64_t>& file_dims, std::uint32_t type,
                             std::uint64_t offset);

  GgufWriter& alignment(std::uint64_t value);  // pads to `value`; does not add the key
  GgufWriter& claim_entries(std::uint64_t count);
  GgufWriter& claim_tensors(std::uint64_t count);

  std::string bytes() const;
  /// Offsets at which a section of bytes() ends: header, each entry, each tensor description, padding, each tensor's
  /// data.
  std::vector<std::size_t> borders() const;

  template <class T>
  static std::string raw(const T& value) {
    return std::string(reinterpret_cast<const char*>(&value), sizeof(T));
  }
  static std::string raw_string(std::string_view text) { return raw<std::uint64_t>(text.size()) + std::string(text); }

 private:
  std::string header() const;

  std::uint32_t version_;
  std::uint64_t alignment_ = 32;
  std::uint64_t num_entries_ = 0;
  std::uint64_t num_tensors_ = 0;
  std::uint64_t claimed_entries_ = 0, claimed_tensors_ = 0;
  bool lie_entries_ = false, lie_tensors_ = false;
  std::vector<std::string> entries_;
  std::vector<std::string> infos_;
  std::string data_;
  std::vector<std::size_t> data_ends_;
};

}  // namespace ops_transformer::test
