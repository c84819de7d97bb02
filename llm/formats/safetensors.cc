// SPDX-License-Identifier: Apache-2.0
#include "llm/formats/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "llm/tokenizer/utf8.h"
#include "ops_transformer/base/error.h"

namespace ops_transformer::llm {
namespace {

using Json = nlohmann::json;

constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // the format's limit
constexpr std::size_t kMaxRank = 4;

constexpr std::pair<std::string_view, DType> kTypes[] = {
    {"F32", DType::f32}, {"F16", DType::f16}, {"BF16", DType::bf16}, {"I8", DType::s8},
    {"U8", DType::u8},   {"I32", DType::i32}, {"I64", DType::i64},   {"BOOL", DType::boolean}};

/// Takes the header's JSON event by event, so that nothing but tensors is ever built from it:
/// {"__metadata__": {text: text, …}, name: {"dtype": text, "shape": [n, …], "data_offsets": [begin, end]}, …}
class HeaderReader final : public nlohmann::json_sax<Json> {
 public:
  HeaderReader(const MappedFile& file, std::size_t data_begin) : file_(file), data_begin_(data_begin) {}
  std::vector<SafetensorsTensor> take_tensors() { return std::move(tensors_); }

  bool start_object(std::size_t) override {
    switch (place_) {
      case Place::start:
        place_ = Place::names;
        return true;
      case Place::value:
        place_ = in_metadata_ ? Place::metadata : Place::fields;
        return true;
      default:
        unexpected("an object");
    }
  }
  bool key(std::string& text) override {
    switch (place_) {
      case Place::names:
        place_ = Place::value;
        in_metadata_ = text == "__metadata__";
        begin_tensor(text);
        return true;
      case Place::metadata:
        place_ = Place::metadata_value;
        return true;
      default:  // fields
        begin_field(text);
        return true;
    }
  }
  bool end_object() override {
    switch (place_) {
      case Place::names:
        place_ = Place::start;
        return true;
      case Place::metadata:
        break;
      default:  // fields
        end_tensor();
    }
    place_ = Place::names;
    return true;
  }
  bool string(std::string& text) override {
    switch (place_) {
      case Place::metadata_value:
        place_ = Place::metadata;
        return true;
      case Place::dtype:
        type_ = text;
        place_ = Place::fields;
        return true;
      default:
        unexpected("a text");
    }
  }
  bool start_array(std::size_t) override {
    if (in_list_ || (place_ != Place::shape && place_ != Place::offsets)) unexpected("a list");
    in_list_ = true;
    return true;
  }
  bool number_unsigned(std::uint64_t value) override {
    if (!in_list_) unexpected("a number");
    if (place_ == Place::shape) {
      if (rank_ == kMaxRank) fail(fmt::format("has more than {} dimensions", kMaxRank));
      dims_[rank_++] = value;
    } else {
      if (num_offsets_ == 2) fail("has more than two data_offsets");
      offsets_[num_offsets_++] = value;
    }
    return true;
  }
  bool end_array() override {
    in_list_ = false;
    place_ = Place::fields;
    return true;
  }
  bool null() override { unexpected("null"); }
  bool boolean(bool) override { unexpected("a truth value"); }
  bool number_integer(std::int64_t value) override { unexpected(fmt::format("the number {}", value)); }
  bool number_float(double, const std::string& text) override { unexpected(fmt::format("the number {}", shown(text))); }
  bool binary(Json::binary_t&) override { unexpected("bytes"); }
  bool parse_error(std::size_t position, const std::string&, const Json::exception&) override {
    throw InvalidFile(fmt::format("{}: the header is not JSON at byte {}", file_.path(), 8 + position));
  }

 private:
  enum class Place { start, names, value, metadata, metadata_value, fields, dtype, shape, offsets };
  enum Field : unsigned { kDtype = 1, kShape = 2, kOffsets = 4 };

  [[noreturn]] void fail(const std::string& what) const {
    throw InvalidFile(fmt::format("{}: tensor '{}' {}", file_.path(), shown(tensor_.name), what));
  }
  [[noreturn]] void unexpected(std::string_view what) const {
    if (place_ == Place::start || place_ == Place::names) {
      throw InvalidFile(fmt::format("{}: the header is {}, needed an object", file_.path(), what));
    }
    fail(fmt::format("has {} where its description asks for something else", what));
  }

  void begin_tensor(std::string& name) {
    tensor_ = SafetensorsTensor{};
    tensor_.name = std::move(name);
    fields_ = 0;
    rank_ = num_offsets_ = 0;
  }
  void begin_field(std::string_view name) {
    constexpr std::pair<std::string_view, std::pair<Field, Place>> kFields[] = {
        {"dtype", {kDtype, Place::dtype}},
        {"shape", {kShape, Place::shape}},
        {"data_offsets", {kOffsets, Place::offsets}}};
    for (const auto& [known, what] : kFields) {
      if (name != known) continue;
      if (fields_ & what.first) fail(fmt::format("has {} twice", known));
      fields_ |= what.first;
      place_ = what.second;
      return;
    }
    fail(fmt::format("has an unknown field '{}'", shown(name)));
  }
  void end_tensor() {
    if (fields_ != (kDtype | kShape | kOffsets) || num_offsets_ != 2)
      fail("lacks its dtype, shape or two data_offsets");
    const auto type = std::ranges::find(kTypes, std::string_view(type_), &std::pair<std::string_view, DType>::first);
    if (type == std::end(kTypes)) fail(fmt::format("has type '{}', which is not supported", shown(type_)));
    tensor_.dtype = type->second;
    for (std::size_t i = 0; i < rank_; ++i) {
      if (dims_[i] == 0) fail(fmt::format("has dimension {} of length 0", i));
      if (dims_[i] > std::uint64_t(std::numeric_limits<std::int64_t>::max()) / tensor_.num_elements) {
        fail(fmt::format("has more than 2^63 elements: dimension {} is {}", i, dims_[i]));
      }
      tensor_.num_elements *= dims_[i];
      tensor_.dims[i] = dims_[i];
    }
    tensor_.rank = std::max<std::size_t>(rank_, 1);
    const std::uint64_t data_bytes = file_.bytes().size() - data_begin_, begin = offsets_[0], end = offsets_[1];
    if (begin > end || end > data_bytes) {
      fail(fmt::format("lies from byte {} to {} of the data, the file has {} bytes of it", begin, end, data_bytes));
    }
    const std::size_t element = element_bytes(tensor_.dtype);
    if ((end - begin) % element != 0 || (end - begin) / element != tensor_.num_elements) {
      fail(fmt::format("has {} elements of {} bytes, but its data has {} bytes", tensor_.num_elements, element,
                       end - begin));
    }
    tensor_.offset = data_begin_ + std::size_t(begin);
    tensor_.bytes = std::size_t(end - begin);
    tensors_.push_back(std::move(tensor_));
  }

  const MappedFile& file_;
  std::size_t data_begin_;
  std::vector<SafetensorsTensor> tensors_;
  Place place_ = Place::start;
  bool in_metadata_ = false, in_list_ = false;
  SafetensorsTensor tensor_;  // being read, and what its fields said
  unsigned fields_ = 0;
  std::string type_;
  std::uint64_t dims_[kMaxRank] = {}, offsets_[2] = {};
  std::size_t rank_ = 0, num_offsets_ = 0;
};

void check_names(const MappedFile& file, const std::vector<SafetensorsTensor>& tensors) {
  std::vector<std::string_view> names;
  names.reserve(tensors.size());
  for (const SafetensorsTensor& tensor : tensors) names.push_back(tensor.name);
  std::ranges::sort(names);
  if (const auto twice = std::ranges::adjacent_find(names); twice != names.end()) {
    throw InvalidFile(fmt::format("{}: tensor '{}' stands twice", file.path(), shown(*twice)));
  }
}

// Shared bytes would make a small file unpack into any amount of memory; unused ones hide what the file holds.
void check_places(const MappedFile& file, std::size_t data_begin, std::vector<SafetensorsTensor>& tensors) {
  std::ranges::sort(tensors, {}, &SafetensorsTensor::offset);
  std::size_t end = data_begin;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].offset < end) {
      throw InvalidFile(fmt::format("{}: tensors '{}' and '{}' share bytes at offset {}", file.path(),
                                    shown(tensors[i - 1].name), shown(tensors[i].name), tensors[i].offset));
    }
    if (tensors[i].offset > end) {
      throw InvalidFile(fmt::format("{}: {} bytes before tensor '{}' belong to none", file.path(),
                                    tensors[i].offset - end, shown(tensors[i].name)));
    }
    end += tensors[i].bytes;
  }
  if (end != file.bytes().size()) {
    throw InvalidFile(fmt::format("{}: the last {} bytes belong to no tensor", file.path(), file.bytes().size() - end));
  }
}

}  // namespace

std::vector<SafetensorsTensor> read_safetensors(const MappedFile& file) {
  const std::span<const std::byte> bytes = file.bytes();
  std::uint64_t header_bytes = 0;
  if (bytes.size() < sizeof(header_bytes)) {
    throw InvalidFile(
        fmt::format("{}: a .safetensors file has at least 8 bytes, this one has {}", file.path(), bytes.size()));
  }
  std::memcpy(&header_bytes, bytes.data(), sizeof(header_bytes));
  if (header_bytes > bytes.size() - sizeof(header_bytes) || header_bytes > kMaxHeaderBytes) {
    throw InvalidFile(fmt::format("{}: the header needs {} bytes at offset 8, the file has {} bytes, the limit is {}",
                                  file.path(), header_bytes, bytes.size(), kMaxHeaderBytes));
  }
  const std::size_t data_begin = sizeof(header_bytes) + std::size_t(header_bytes);
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + sizeof(header_bytes),
                              std::size_t(header_bytes));
  HeaderReader reader(file, data_begin);
  Json::sax_parse(text, &reader);
  std::vector<SafetensorsTensor> tensors = reader.take_tensors();
  check_names(file, tensors);
  check_places(file, data_begin, tensors);
  return tensors;
}

}  // namespace ops_transformer::llm
