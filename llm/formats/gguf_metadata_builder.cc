// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "llm/formats/gguf_metadata.h"

namespace ops_transformer::llm {
namespace {

template <class T>
std::string raw(const T& value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof value);
}

template <class T>
std::string raw_list(std::span<const T> values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size_bytes());
}

std::string raw_text(std::string_view text) { return raw(std::uint64_t{text.size()}).append(text); }

}  // namespace

void GgufMetadataBuilder::add(std::string key, GgufType type, GgufType element_type, std::size_t length,
                              std::string bytes) {
  const std::string& owned_key = owned_.emplace_back(std::move(key));
  const std::string& owned_bytes = owned_.emplace_back(std::move(bytes));
  entries_.push_back({owned_key, type, element_type, length, std::as_bytes(std::span(owned_bytes))});
}

void GgufMetadataBuilder::add_bool(std::string key, bool value) {
  add(std::move(key), GgufType::boolean, GgufType::boolean, 1, raw(std::uint8_t{value}));
}
void GgufMetadataBuilder::add_u32(std::string key, std::uint32_t value) {
  add(std::move(key), GgufType::u32, GgufType::u32, 1, raw(value));
}
void GgufMetadataBuilder::add_f32(std::string key, float value) {
  add(std::move(key), GgufType::f32, GgufType::f32, 1, raw(value));
}
void GgufMetadataBuilder::add_string(std::string key, std::string_view value) {
  add(std::move(key), GgufType::string, GgufType::string, 1, raw_text(value));
}
void GgufMetadataBuilder::add_i32s(std::string key, std::span<const std::int32_t> values) {
  add(std::move(key), GgufType::array, GgufType::i32, values.size(), raw_list(values));
}
void GgufMetadataBuilder::add_f32s(std::string key, std::span<const float> values) {
  add(std::move(key), GgufType::array, GgufType::f32, values.size(), raw_list(values));
}
void GgufMetadataBuilder::add_bools(std::string key, const std::vector<bool>& values) {
  add(std::move(key), GgufType::array, GgufType::boolean, values.size(), std::string(values.begin(), values.end()));
}
void GgufMetadataBuilder::add_strings(std::string key, std::span<const std::string> values) {
  std::string bytes;
  for (const std::string& value : values) bytes += raw_text(value);
  add(std::move(key), GgufType::array, GgufType::string, values.size(), std::move(bytes));
}

GgufMetadata GgufMetadataBuilder::build() {
  return GgufMetadata(std::exchange(entries_, {}), std::exchange(owned_, {}));
}

}  // namespace ops_transformer::llm
