// SPDX-License-Identifier: Apache-2.0
#include "llm/formats/json_file.h"

#include <fmt/format.h>

#include <set>

#include "llm/formats/mapped_file.h"
#include "llm/tokenizer/utf8.h"
#include "ops_transformer/base/error.h"

namespace ops_transformer::llm {
namespace {

using Json = nlohmann::json;

constexpr int kMaxDepth = 64;

}  // namespace

std::string shown_json(const Json& value) {
  if (value.is_string()) return fmt::format("'{}'", shown(value.get_ref<const std::string&>(), 60));
  return value.is_structured() ? fmt::format("a{} of {}", value.is_array() ? " list" : "n object", value.size())
                               : value.dump();
}

JsonObject JsonObject::read(const std::string& path, std::size_t max_bytes) {
  const MappedFile file = MappedFile::open(path);
  const std::span<const std::byte> bytes = file.bytes();
  if (bytes.size() > max_bytes) {
    throw InvalidFile(fmt::format("{}: has {} bytes, the limit is {}", path, bytes.size(), max_bytes));
  }
  return parse({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path);
}

JsonObject JsonObject::parse(std::string_view text, const std::string& name) {
  std::vector<std::set<std::string>> keys;
  const auto check = [&](int depth, Json::parse_event_t event, Json& value) {
    if (depth > kMaxDepth) throw InvalidFile(fmt::format("{}: is nested more than {} deep", name, kMaxDepth));
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.back().insert(value.get_ref<const std::string&>()).second) {
      throw InvalidFile(fmt::format("{}: key {} stands twice", name, shown_json(value)));
    }
    return true;
  };
  JsonObject object;
  try {
    object.json_ = std::make_shared<const Json>(Json::parse(text, check));
  } catch (const Json::parse_error& error) {
    throw InvalidFile(fmt::format("{}: is not JSON at byte {}", name, error.byte));
  } catch (const Json::exception&) {
    throw InvalidFile(fmt::format("{}: holds a number that is out of range", name));
  }
  if (!object.json_->is_object()) throw InvalidFile(fmt::format("{}: is not a JSON object", name));
  object.where_ = name + ": ";
  return object;
}

void JsonObject::refuse(const std::string& key, const std::string& what) const {
  throw InvalidFile(fmt::format("{}{} {}", where_, shown(key), what));
}

const Json* JsonObject::find(const std::string& key) const {
  const auto found = json_->find(key);
  return found == json_->end() || found->is_null() ? nullptr : &*found;
}

std::optional<std::int64_t> JsonObject::integer(const std::string& key, std::int64_t low, std::int64_t high) const {
  const Json* value = find(key);
  if (!value) return std::nullopt;
  const bool fits = value->is_number_unsigned() ? high >= 0 && value->get<std::uint64_t>() <= std::uint64_t(high)
                                                : value->is_number_integer() && value->get<std::int64_t>() <= high;
  if (!fits || value->get<std::int64_t>() < low) {
    refuse(key, fmt::format("is {}, needed a whole number from {} to {}", shown_json(*value), low, high));
  }
  return value->get<std::int64_t>();
}

std::int64_t JsonObject::require_integer(const std::string& key, std::int64_t low, std::int64_t high) const {
  const auto value = integer(key, low, high);
  if (!value) refuse(key, "is missing");
  return *value;
}

std::optional<double> JsonObject::number(const std::string& key) const {
  const Json* value = find(key);
  if (!value) return std::nullopt;
  if (!value->is_number()) refuse(key, fmt::format("is {}, needed a number", shown_json(*value)));
  return value->get<double>();
}

std::optional<std::string> JsonObject::text(const std::string& key) const {
  const Json* value = find(key);
  if (!value) return std::nullopt;
  if (!value->is_string()) refuse(key, fmt::format("is {}, needed a text", shown_json(*value)));
  return value->get<std::string>();
}

std::optional<bool> JsonObject::truth(const std::string& key) const {
  const Json* value = find(key);
  if (!value) return std::nullopt;
  if (!value->is_boolean()) refuse(key, fmt::format("is {}, needed true or false", shown_json(*value)));
  return value->get<bool>();
}

std::optional<JsonObject> JsonObject::object(const std::string& key) const {
  const Json* value = find(key);
  if (!value) return std::nullopt;
  if (!value->is_object()) refuse(key, fmt::format("is {}, needed an object", shown_json(*value)));
  JsonObject object;
  object.json_ = std::shared_ptr<const Json>(json_, value);
  object.where_ = fmt::format("{}{}.", where_, shown(key));
  return object;
}

std::vector<JsonObject> JsonObject::elements(const std::string& key) const {
  std::vector<JsonObject> objects;
  const Json* list = find(key);
  if (!list) return objects;
  const auto refuse_it = [&] { refuse(key, fmt::format("is {}, needed a list of objects", shown_json(*list))); };
  if (!list->is_array()) refuse_it();
  for (const Json& element : *list) {
    if (!element.is_object()) refuse_it();
    JsonObject object;
    object.json_ = std::shared_ptr<const Json>(json_, &element);
    object.where_ = fmt::format("{}{}[{}].", where_, shown(key), objects.size());
    objects.push_back(std::move(object));
  }
  return objects;
}

std::optional<std::vector<std::string>> JsonObject::texts(const std::string& key) const {
  const Json* value = find(key);
  if (!value) return std::nullopt;
  if (!value->is_array() || !std::ranges::all_of(*value, [](const Json& item) { return item.is_string(); })) {
    refuse(key, fmt::format("is {}, needed a list of texts", shown_json(*value)));
  }
  return value->get<std::vector<std::string>>();
}

}  // namespace ops_transformer::llm
