// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ops_transformer/base/error.h"
#include "ops_transformer/base/export.h"

namespace ops_transformer::llm {

/// Types of a metadata value; the numbers are those of GGUF.
enum class GgufType : std::uint32_t { u8, i8, u16, i16, u32, i32, f32, boolean, string, array, u64, i64, f64 };
inline constexpr std::uint32_t kNumGgufTypes = 13;

/// Bytes of a stored value of a fixed-size type; 0 for strings and arrays.
std::size_t gguf_type_bytes(GgufType type) noexcept;
std::string_view gguf_type_name(GgufType type) noexcept;

/// A metadata entry. Views live as long as the GgufMetadata and the file it was read from.
struct GgufEntry {
  std::string_view key;
  GgufType type;                     // `array` for arrays
  GgufType element_type;             // type of an array's elements; equals `type` otherwise
  std::size_t length;                // elements of an array; 1 otherwise
  std::span<const std::byte> bytes;  // the value as GGUF stores it (little-endian, strings with their length)
};

/// Entries by key. Every getter throws InvalidFile, naming the key, where the stored type or range does not fit T.
/// T: bool, int32_t, uint32_t, int64_t, uint64_t (any stored integer in range), float, double (any stored float or
/// integer), std::string_view, std::string, and std::vector of int32_t, uint32_t, float, bool, string_view.
class OPS_TRANSFORMER_API GgufMetadata {
 public:
  GgufMetadata() = default;
  /// Throws InvalidFile where a key stands twice.
  explicit GgufMetadata(std::vector<GgufEntry> entries);

  /// The entry, or null where there is none.
  const GgufEntry* find(std::string_view key) const noexcept;
  /// The value; nothing where there is none.
  template <class T>
  std::optional<T> get(std::string_view key) const;
  /// The value, or `fallback` where there is none.
  template <class T>
  T get_or(std::string_view key, T fallback) const;
  /// The value; throws InvalidFile where there is none.
  template <class T>
  T require(std::string_view key) const;
  /// All entries in their order.
  std::span<const GgufEntry> entries() const noexcept { return entries_; }

 private:
  std::vector<GgufEntry> entries_;
  std::vector<std::uint32_t> by_key_;
};

/// Text of a value for people: control characters escaped, long strings and arrays cut after `max_len` characters.
OPS_TRANSFORMER_API std::string gguf_value_text(const GgufEntry& entry, std::size_t max_len = 80);

}  // namespace ops_transformer::llm
