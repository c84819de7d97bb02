// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ops_transformer::llm {

/// An object of an untrusted JSON file, whose getters name file and key. `null` counts as missing, as in the files that
/// Transformers writes.
class JsonObject {
 public:
  /// Reads a file of at most `max_bytes`. Throws SystemFailure, or InvalidFile where it is not one JSON object, is
  /// nested more than 64 deep, or has a key twice.
  static JsonObject read(const std::string& path, std::size_t max_bytes);
  static JsonObject parse(std::string_view text, const std::string& name);

  // Each gives nothing where the key is missing and throws InvalidFile where its value has another type or range.
  std::optional<std::int64_t> integer(const std::string& key, std::int64_t low, std::int64_t high) const;
  std::optional<double> number(const std::string& key) const;
  std::optional<std::string> text(const std::string& key) const;
  std::optional<bool> truth(const std::string& key) const;
  std::optional<JsonObject> object(const std::string& key) const;
  std::optional<std::vector<std::string>> texts(const std::string& key) const;

  /// The objects of a list; none where the key is missing.
  std::vector<JsonObject> elements(const std::string& key) const;

  std::int64_t require_integer(const std::string& key, std::int64_t low, std::int64_t high) const;

  bool has(const std::string& key) const { return find(key) != nullptr; }
  /// Null where the key is missing.
  const nlohmann::json* find(const std::string& key) const;
  const nlohmann::json& json() const { return *json_; }
  /// Throws InvalidFile: "<file>: <key> <what>".
  [[noreturn]] void refuse(const std::string& key, const std::string& what) const;

 private:
  std::shared_ptr<const nlohmann::json> json_;  // shares its file's
  std::string where_;                           // "config.json: " or "config.json: rope_scaling."
};

/// A value for an error message: short texts and numbers as they are, the size of others.
std::string shown_json(const nlohmann::json& value);

}  // namespace ops_transformer::llm
