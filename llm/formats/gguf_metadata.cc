// SPDX-License-Identifier: Apache-2.0
#include "llm/formats/gguf_metadata.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <numeric>
#include <type_traits>
#include <utility>

#include "llm/tokenizer/utf8.h"

namespace ops_transformer::llm {
namespace {

struct TypeInfo {
  std::string_view name;
  std::size_t bytes;
};
constexpr std::array<TypeInfo, kNumGgufTypes> kTypes = {{{"u8", 1},
                                                         {"i8", 1},
                                                         {"u16", 2},
                                                         {"i16", 2},
                                                         {"u32", 4},
                                                         {"i32", 4},
                                                         {"f32", 4},
                                                         {"bool", 1},
                                                         {"string", 0},
                                                         {"array", 0},
                                                         {"u64", 8},
                                                         {"i64", 8},
                                                         {"f64", 8}}};

template <class T>
T load(const std::byte* at) noexcept {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

/// A stored number, wide enough for every type.
struct Number {
  enum class Kind { negative, unsigned_integer, real, none } kind = Kind::none;
  std::int64_t negative = 0;
  std::uint64_t integer = 0;
  double real = 0;
};

Number from_signed(std::int64_t value) noexcept {
  if (value < 0) return {Number::Kind::negative, value, 0, 0};
  return {Number::Kind::unsigned_integer, 0, static_cast<std::uint64_t>(value), 0};
}
Number from_unsigned(std::uint64_t value) noexcept { return {Number::Kind::unsigned_integer, 0, value, 0}; }
Number from_real(double value) noexcept { return {Number::Kind::real, 0, 0, value}; }

Number load_number(GgufType type, const std::byte* at) noexcept {
  switch (type) {
    case GgufType::u8:
      return from_unsigned(load<std::uint8_t>(at));
    case GgufType::i8:
      return from_signed(load<std::int8_t>(at));
    case GgufType::u16:
      return from_unsigned(load<std::uint16_t>(at));
    case GgufType::i16:
      return from_signed(load<std::int16_t>(at));
    case GgufType::u32:
      return from_unsigned(load<std::uint32_t>(at));
    case GgufType::i32:
      return from_signed(load<std::int32_t>(at));
    case GgufType::u64:
      return from_unsigned(load<std::uint64_t>(at));
    case GgufType::i64:
      return from_signed(load<std::int64_t>(at));
    case GgufType::f32:
      return from_real(load<float>(at));
    case GgufType::f64:
      return from_real(load<double>(at));
    default:
      return {};
  }
}

[[noreturn]] void wrong_type(const GgufEntry& entry, std::string_view needed) {
  const bool is_array = entry.type == GgufType::array;
  throw InvalidFile(fmt::format("key '{}' has type {}{}, needed {}", shown(entry.key), is_array ? "array of " : "",
                                gguf_type_name(entry.element_type), needed));
}

[[noreturn]] void out_of_range(const GgufEntry& entry, const std::string& value, const std::string& range) {
  throw InvalidFile(fmt::format("key '{}' is {}, needed {}", shown(entry.key), value, range));
}

template <class T>
T convert(const GgufEntry& entry, const std::byte* at) {
  if constexpr (std::is_same_v<T, bool>) {
    if (entry.element_type != GgufType::boolean) wrong_type(entry, "bool");
    const auto value = load<std::uint8_t>(at);
    if (value > 1) out_of_range(entry, fmt::format("{}", value), "a bool, 0 or 1");
    return value == 1;
  } else if constexpr (std::is_integral_v<T>) {
    const Number number = load_number(entry.element_type, at);
    const auto range = [] {
      return fmt::format("{} to {}", std::numeric_limits<T>::min(), std::numeric_limits<T>::max());
    };
    if (number.kind == Number::Kind::unsigned_integer) {
      if (number.integer > static_cast<std::uint64_t>(std::numeric_limits<T>::max())) {
        out_of_range(entry, fmt::format("{}", number.integer), range());
      }
      return static_cast<T>(number.integer);
    }
    if (number.kind == Number::Kind::negative) {
      if (std::is_unsigned_v<T> || number.negative < static_cast<std::int64_t>(std::numeric_limits<T>::min())) {
        out_of_range(entry, fmt::format("{}", number.negative), range());
      }
      return static_cast<T>(number.negative);
    }
    wrong_type(entry, "an integer");
  } else {
    const Number number = load_number(entry.element_type, at);
    switch (number.kind) {
      case Number::Kind::unsigned_integer:
        return static_cast<T>(number.integer);
      case Number::Kind::negative:
        return static_cast<T>(number.negative);
      case Number::Kind::real:
        return static_cast<T>(number.real);
      case Number::Kind::none:
        break;
    }
    wrong_type(entry, "a number");
  }
}

/// The parser has checked each length.
std::string_view load_string(const std::byte*& at) noexcept {
  const auto length = static_cast<std::size_t>(load<std::uint64_t>(at));
  const std::string_view text(reinterpret_cast<const char*>(at) + 8, length);
  at += 8 + length;
  return text;
}

template <class T>
struct Reader {
  static T read(const GgufEntry& entry) {
    if (entry.type == GgufType::array) wrong_type(entry, "a single value");
    return convert<T>(entry, entry.bytes.data());
  }
};

template <>
struct Reader<std::string_view> {
  static std::string_view read(const GgufEntry& entry) {
    if (entry.type != GgufType::string) wrong_type(entry, "string");
    const std::byte* at = entry.bytes.data();
    return load_string(at);
  }
};

template <>
struct Reader<std::string> {
  static std::string read(const GgufEntry& entry) { return std::string(Reader<std::string_view>::read(entry)); }
};

template <class T>
struct Reader<std::vector<T>> {
  static std::vector<T> read(const GgufEntry& entry) {
    if (entry.type != GgufType::array) wrong_type(entry, "an array");
    std::vector<T> values;
    values.reserve(entry.length);
    const std::byte* at = entry.bytes.data();
    for (std::size_t i = 0; i < entry.length; ++i, at += gguf_type_bytes(entry.element_type)) {
      values.push_back(convert<T>(entry, at));
    }
    return values;
  }
};

template <>
struct Reader<std::vector<std::string_view>> {
  static std::vector<std::string_view> read(const GgufEntry& entry) {
    if (entry.type != GgufType::array || entry.element_type != GgufType::string) wrong_type(entry, "array of string");
    std::vector<std::string_view> values;
    values.reserve(entry.length);
    const std::byte* at = entry.bytes.data();
    for (std::size_t i = 0; i < entry.length; ++i) values.push_back(load_string(at));
    return values;
  }
};

std::string element_text(GgufType type, const std::byte*& at, std::size_t max_len) {
  if (type == GgufType::string) return fmt::format("\"{}\"", shown(load_string(at), max_len));
  const Number number = load_number(type, at);
  const bool boolean = load<std::uint8_t>(at) != 0;
  at += gguf_type_bytes(type);
  switch (number.kind) {
    case Number::Kind::unsigned_integer:
      return fmt::format("{}", number.integer);
    case Number::Kind::negative:
      return fmt::format("{}", number.negative);
    case Number::Kind::real:
      return type == GgufType::f32 ? fmt::format("{}", static_cast<float>(number.real))
                                   : fmt::format("{}", number.real);
    case Number::Kind::none:
      break;
  }
  return boolean ? "true" : "false";
}

}  // namespace

std::size_t gguf_type_bytes(GgufType type) noexcept { return kTypes[static_cast<std::size_t>(type)].bytes; }
std::string_view gguf_type_name(GgufType type) noexcept { return kTypes[static_cast<std::size_t>(type)].name; }

GgufMetadata::GgufMetadata(std::vector<GgufEntry> entries, std::list<std::string> owned)
    : entries_(std::move(entries)), by_key_(entries_.size()), owned_(std::move(owned)) {
  std::iota(by_key_.begin(), by_key_.end(), 0u);
  const auto key_of = [this](std::uint32_t i) { return entries_[i].key; };
  std::ranges::sort(by_key_, {}, key_of);
  const auto twice = std::ranges::adjacent_find(by_key_, {}, key_of);
  if (twice != by_key_.end()) throw InvalidFile(fmt::format("key '{}' stands twice", shown(key_of(*twice))));
}

const GgufEntry* GgufMetadata::find(std::string_view key) const noexcept {
  const auto at = std::lower_bound(by_key_.begin(), by_key_.end(), key,
                                   [&](std::uint32_t i, std::string_view k) { return entries_[i].key < k; });
  return at != by_key_.end() && entries_[*at].key == key ? &entries_[*at] : nullptr;
}

template <class T>
std::optional<T> GgufMetadata::get(std::string_view key) const {
  const GgufEntry* entry = find(key);
  if (!entry) return std::nullopt;
  return Reader<T>::read(*entry);
}

template <class T>
T GgufMetadata::get_or(std::string_view key, T fallback) const {
  const GgufEntry* entry = find(key);
  return entry ? Reader<T>::read(*entry) : fallback;
}

template <class T>
T GgufMetadata::require(std::string_view key) const {
  const GgufEntry* entry = find(key);
  if (!entry) throw InvalidFile(fmt::format("key '{}' is missing", shown(key)));
  return Reader<T>::read(*entry);
}

#define OPS_TRANSFORMER_GGUF_GETTERS(...)                                                                          \
  template OPS_TRANSFORMER_API std::optional<__VA_ARGS__> GgufMetadata::get<__VA_ARGS__>(std::string_view) const;  \
  template OPS_TRANSFORMER_API __VA_ARGS__ GgufMetadata::get_or<__VA_ARGS__>(std::string_view, __VA_ARGS__) const; \
  template OPS_TRANSFORMER_API __VA_ARGS__ GgufMetadata::require<__VA_ARGS__>(std::string_view) const;
OPS_TRANSFORMER_GGUF_GETTERS(bool)
OPS_TRANSFORMER_GGUF_GETTERS(std::int32_t)
OPS_TRANSFORMER_GGUF_GETTERS(std::uint32_t)
OPS_TRANSFORMER_GGUF_GETTERS(std::int64_t)
OPS_TRANSFORMER_GGUF_GETTERS(std::uint64_t)
OPS_TRANSFORMER_GGUF_GETTERS(float)
OPS_TRANSFORMER_GGUF_GETTERS(double)
OPS_TRANSFORMER_GGUF_GETTERS(std::string_view)
OPS_TRANSFORMER_GGUF_GETTERS(std::string)
OPS_TRANSFORMER_GGUF_GETTERS(std::vector<std::int32_t>)
OPS_TRANSFORMER_GGUF_GETTERS(std::vector<std::uint32_t>)
OPS_TRANSFORMER_GGUF_GETTERS(std::vector<float>)
OPS_TRANSFORMER_GGUF_GETTERS(std::vector<bool>)
OPS_TRANSFORMER_GGUF_GETTERS(std::vector<std::string_view>)
#undef OPS_TRANSFORMER_GGUF_GETTERS

std::string gguf_value_text(const GgufEntry& entry, std::size_t max_len) {
  const std::byte* at = entry.bytes.data();
  if (entry.type != GgufType::array) return element_text(entry.type, at, max_len);
  std::string text = fmt::format("{} × {} [", entry.length, gguf_type_name(entry.element_type));
  for (std::size_t i = 0; i < entry.length; ++i) {
    if (i > 0) text += ", ";
    if (text.size() > max_len) return text + "…]";
    text += element_text(entry.element_type, at, max_len);
  }
  return text + "]";
}

}  // namespace ops_transformer::llm
