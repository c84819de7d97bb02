// SPDX-License-Identifier: Apache-2.0
#include "llm/config_keys.h"

#include <fmt/format.h>

#include "llm/tokenizer/utf8.h"

namespace ops_transformer::llm {

ConfigKeys::ConfigKeys(const ModelFile& file)
    : metadata_(file.metadata()), architecture_(metadata_.require<std::string>("general.architecture")) {}

std::optional<std::int64_t> ConfigKeys::find(const char* key, std::int64_t low, std::int64_t high) const {
  const auto value = metadata_.get<std::int64_t>(name(key));
  if (value && (*value < low || *value > high)) {
    throw InvalidFile(fmt::format("{} is {}, must be from {} to {}", name(key), *value, low, high));
  }
  return value;
}

std::int64_t ConfigKeys::require(const char* key, std::int64_t low, std::int64_t high) const {
  metadata_.require<std::int64_t>(name(key));
  return *find(key, low, high);
}

double ConfigKeys::positive(const char* key, double fallback, double most) const {
  const double value = metadata_.get_or<double>(name(key), fallback);
  if (!(value > 0 && value <= most)) {
    throw InvalidFile(fmt::format("{} is {}, must be above 0 and at most {}", name(key), value, most));
  }
  return value;
}

std::string ConfigKeys::text(const char* key) const { return metadata_.get_or<std::string>(name(key), ""); }

void ConfigKeys::require_only(const char* key, double only) const {
  if (const double value = metadata_.get_or<double>(name(key), only); !(value == only)) {
    refuse(key, fmt::format("{}", value), fmt::format("{}", only).c_str());
  }
}

void ConfigKeys::refuse(const char* key, const std::string& value, const char* supported) const {
  throw InvalidFile(
      fmt::format("{} is '{}', which is not supported; supported: {}", name(key), shown(value), supported));
}

}  // namespace ops_transformer::llm
