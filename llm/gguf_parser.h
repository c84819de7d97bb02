// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstring>
#include <string>
#include <string_view>

#include "llm/gguf.h"

namespace ops_transformer::llm {

/// Walks a file once from its first byte. `pos_` never passes `bytes_.size()`: each step first asks what is left.
class GgufParser {
 public:
  explicit GgufParser(GgufFile& file) : file_(file), bytes_(file.bytes_) {}
  void parse();

 private:
  std::size_t left() const noexcept { return bytes_.size() - pos_; }
  [[noreturn]] void fail(const std::string& what) const;
  void need(std::uint64_t bytes, std::string_view part) const;
  template <class T>
  T read(std::string_view part) {
    need(sizeof(T), part);
    T value;
    std::memcpy(&value, bytes_.data() + pos_, sizeof(T));
    pos_ += sizeof(T);
    return value;
  }
  std::string_view read_string(std::string_view part);
  void read_header();
  GgufType read_type(std::string_view part);
  void read_entry();
  void skip_value(const GgufEntry& entry);
  void index_entries();
  void read_alignment();
  void read_tensor();
  void place_tensors();

  GgufFile& file_;
  std::span<const std::byte> bytes_;
  std::size_t pos_ = 0;
  std::uint64_t num_tensors_ = 0;
  std::uint64_t num_entries_ = 0;
};

/// Bytes of a stored value of a fixed-size type; 0 for strings and arrays.
std::size_t gguf_type_bytes(GgufType type) noexcept;
std::string_view gguf_type_name(GgufType type) noexcept;

}  // namespace ops_transformer::llm
