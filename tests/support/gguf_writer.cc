// SPDX-License-Identifier: Apache-2.0
#include "tests/support/gguf_writer.h"

namespace ops_transformer::test {

GgufWriter& GgufWriter::add_raw(std::string_view key, std::uint32_t type, std::string_view value) {
  entries_.push_back(raw_string(key) + raw(type) + std::string(value));
  ++num_entries_;
  return *this;
}

GgufWriter& GgufWriter::add_string(std::string_view key, std::string_view value) {
  return add_raw(key, 8, raw_string(value));
}

GgufWriter& GgufWriter::add_strings(std::string_view key, const std::vector<std::string>& values) {
  std::string value = raw<std::uint32_t>(8) + raw<std::uint64_t>(values.size());
  for (const std::string& text : values) value += raw_string(text);
  return add_raw(key, 9, value);
}

GgufWriter& GgufWriter::add_tensor(std::string_view name, DType dtype, const std::vector<std::uint64_t>& dims,
                                   std::string_view data) {
  data_.resize((data_.size() + alignment_ - 1) / alignment_ * alignment_);
  add_tensor_raw(name, {dims.rbegin(), dims.rend()}, static_cast<std::uint32_t>(dtype_info(dtype).ggml_type),
                 data_.size());
  data_ += data;
  data_ends_.push_back(data_.size());
  return *this;
}

GgufWriter& GgufWriter::add_tensor_raw(std::string_view name, const std::vector<std::uint64_t>& file_dims,
                                       std::uint32_t type, std::uint64_t offset) {
  std::string info = raw_string(name) + raw(static_cast<std::uint32_t>(file_dims.size()));
  for (const std::uint64_t dim : file_dims) info += raw(dim);
  infos_.push_back(info + raw(type) + raw(offset));
  ++num_tensors_;
  return *this;
}

GgufWriter& GgufWriter::alignment(std::uint64_t value) {
  alignment_ = value;
  return *this;
}

GgufWriter& GgufWriter::claim_entries(std::uint64_t count) {
  claimed_entries_ = count;
  lie_entries_ = true;
  return *this;
}

GgufWriter& GgufWriter::claim_tensors(std::uint64_t count) {
  claimed_tensors_ = count;
  lie_tensors_ = true;
  return *this;
}

std::string GgufWriter::header() const {
  return "GGUF" + raw(version_) + raw(lie_tensors_ ? claimed_tensors_ : num_tensors_) +
         raw(lie_entries_ ? claimed_entries_ : num_entries_);
}

std::string GgufWriter::bytes() const {
  std::string out = header();
  for (const std::string& entry : entries_) out += entry;
  for (const std::string& info : infos_) out += info;
  if (!data_.empty()) {
    out.resize((out.size() + alignment_ - 1) / alignment_ * alignment_);
    out += data_;
  }
  return out;
}

std::vector<std::size_t> GgufWriter::borders() const {
  std::vector<std::size_t> borders = {header().size()};
  for (const std::string& entry : entries_) borders.push_back(borders.back() + entry.size());
  for (const std::string& info : infos_) borders.push_back(borders.back() + info.size());
  const std::size_t data_begin = (borders.back() + alignment_ - 1) / alignment_ * alignment_;
  borders.push_back(data_begin);
  for (const std::size_t end : data_ends_) borders.push_back(data_begin + end);
  return borders;
}

}  // namespace ops_transformer::test
