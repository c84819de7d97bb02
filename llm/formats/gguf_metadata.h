// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ops_transformer/base/error.h"
#include "ops_transformer/base/export.h"

namespace ops_transformer::llm {

inline constexpr std::uint32_t kGgufMagic = 0x46554747;  // "GGUF", in front of a file
inline constexpr std::size_t kGgufAlignment = 32;        // of tensors, where general.alignment gives no other

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
  /// Throws InvalidFile where a key stands twice. `owned` holds what the entries' views point to, if no file does.
  explicit GgufMetadata(std::vector<GgufEntry> entries, std::list<std::string> owned = {});
  GgufMetadata(GgufMetadata&&) noexcept = default;
  GgufMetadata& operator=(GgufMetadata&&) noexcept = default;

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
  std::list<std::string> owned_;  // nodes keep their place when the object moves
};

/// Makes metadata of values that come from elsewhere than a GGUF file.
class OPS_TRANSFORMER_API GgufMetadataBuilder {
 public:
  void add_bool(std::string key, bool value);
  void add_u32(std::string key, std::uint32_t value);
  void add_f32(std::string key, float value);
  void add_string(std::string key, std::string_view value);
  void add_i32s(std::string key, std::span<const std::int32_t> values);
  void add_f32s(std::string key, std::span<const float> values);
  void add_bools(std::string key, const std::vector<bool>& values);
  void add_strings(std::string key, std::span<const std::string> values);
  /// Throws InvalidFile where a key was added twice. The builder is empty afterwards.
  GgufMetadata build();

 private:
  void add(std::string key, GgufType type, GgufType element_type, std::size_t length, std::string bytes);
  std::vector<GgufEntry> entries_;
  std::list<std::string> owned_;
};

/// Text of a value for people: control characters escaped, long strings and arrays cut after `max_len` characters.
OPS_TRANSFORMER_API std::string gguf_value_text(const GgufEntry& entry, std::size_t max_len = 80);

}  // namespace ops_transformer::llm
