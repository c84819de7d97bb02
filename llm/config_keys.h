// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>

#include "llm/formats/model_file.h"

namespace ops_transformer::llm {

/// The metadata keys of a file's architecture ("llama.block_count"), each checked as it is read. Every function throws
/// InvalidFile, naming the key.
class ConfigKeys {
 public:
  explicit ConfigKeys(const ModelFile& file);

  const std::string& architecture() const noexcept { return architecture_; }
  /// The key as it stands in the file.
  std::string name(const char* key) const { return architecture_ + "." + key; }

  /// Whole numbers from `low` to `high`.
  std::optional<std::int64_t> find(const char* key, std::int64_t low, std::int64_t high) const;
  std::int64_t require(const char* key, std::int64_t low, std::int64_t high) const;
  /// A number above 0 and at most `most`.
  double positive(const char* key, double fallback, double most = std::numeric_limits<double>::max()) const;
  std::string text(const char* key) const;

  /// A number that must be `only` where the file has it: another model needs what is not built here.
  void require_only(const char* key, double only) const;
  [[noreturn]] void refuse(const char* key, const std::string& value, const char* supported) const;

 private:
  const GgufMetadata& metadata_;
  std::string architecture_;
};

}  // namespace ops_transformer::llm
