// SPDX-License-Identifier: Apache-2.0
#include "llm/formats/gguf_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>

#include "llm/tokenizer/utf8.h"

namespace ops_transformer::llm {
namespace {

constexpr std::size_t kMinEntryBytes = 8 + 4 + 1;           // key length, type, a one-byte value
constexpr std::size_t kMinTensorBytes = 8 + 4 + 8 + 4 + 8;  // name length, rank, one dimension, type, offset
constexpr std::size_t kMaxKeyBytes = 65535;                 // the format's limit
constexpr std::uint32_t kMaxRank = 4;
constexpr std::uint32_t kMaxAlignment = 1u << 21;  // a huge page

/// Walks a file once from its first byte. `pos_` never passes `bytes_.size()`: each step first asks what is left.
class GgufParser {
 public:
  explicit GgufParser(const MappedFile& file) : path_(file.path()), bytes_(file.bytes()) {}
  ModelFileParts parse();

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
  void read_alignment();
  void read_tensor();
  void place_tensors();

  const std::string& path_;
  std::span<const std::byte> bytes_;
  ModelFileParts parts_;
  std::vector<GgufEntry> entries_;
  std::size_t alignment_ = kGgufAlignment;
  std::size_t pos_ = 0;
  std::uint64_t num_tensors_ = 0;
  std::uint64_t num_entries_ = 0;
};

void GgufParser::fail(const std::string& what) const { throw InvalidFile(fmt::format("{}: {}", path_, what)); }

void GgufParser::need(std::uint64_t bytes, std::string_view part) const {
  if (bytes > left()) {
    fail(fmt::format("{} needs {} bytes at offset {}, the file has {} bytes ({} left)", part, bytes, pos_,
                     bytes_.size(), left()));
  }
}

std::string_view GgufParser::read_string(std::string_view part) {
  const auto length = read<std::uint64_t>(part);
  need(length, part);
  const std::string_view text(reinterpret_cast<const char*>(bytes_.data()) + pos_, static_cast<std::size_t>(length));
  pos_ += text.size();
  return text;
}

ModelFileParts GgufParser::parse() {
  read_header();
  for (std::uint64_t i = 0; i < num_entries_; ++i) read_entry();
  parts_.metadata = GgufMetadata(std::move(entries_));
  read_alignment();
  for (std::uint64_t i = 0; i < num_tensors_; ++i) read_tensor();
  place_tensors();
  return std::move(parts_);
}

void GgufParser::read_header() {
  const auto magic = read<std::uint32_t>("the header");
  if (magic != kGgufMagic) fail(fmt::format("is not a GGUF file (magic {:08x}, needed {:08x})", magic, kGgufMagic));
  const auto version = read<std::uint32_t>("the header");
  if (version != 2 && version != 3) {
    const bool swapped = (version & 0xffff) == 0 && version != 0;
    fail(swapped ? std::string("is a big-endian GGUF file; only little-endian ones can be read")
                 : fmt::format("has GGUF version {}; 2 and 3 can be read", version));
  }
  parts_.format = fmt::format("GGUF version {}", version);
  num_tensors_ = read<std::uint64_t>("the header");
  num_entries_ = read<std::uint64_t>("the header");
  if (num_entries_ > left() / kMinEntryBytes) {
    fail(fmt::format("claims {} metadata entries; its {} bytes hold at most {}", num_entries_, bytes_.size(),
                     left() / kMinEntryBytes));
  }
  if (num_tensors_ > left() / kMinTensorBytes) {
    fail(fmt::format("claims {} tensors; its {} bytes hold at most {}", num_tensors_, bytes_.size(),
                     left() / kMinTensorBytes));
  }
  // The lookup tables hold 32-bit indices.
  constexpr std::uint64_t kMaxCount = std::numeric_limits<std::uint32_t>::max();
  if (num_entries_ > kMaxCount || num_tensors_ > kMaxCount) {
    fail(fmt::format("has {} metadata entries and {} tensors, the limit is {}", num_entries_, num_tensors_, kMaxCount));
  }
}

GgufType GgufParser::read_type(std::string_view part) {
  const auto type = read<std::uint32_t>(part);
  if (type >= kNumGgufTypes) fail(fmt::format("{} has unknown value type {}", part, type));
  return static_cast<GgufType>(type);
}

void GgufParser::read_entry() {
  const auto index = entries_.size();
  const std::string_view key = read_string(fmt::format("the key of metadata entry {}", index));
  if (key.empty() || key.size() > kMaxKeyBytes) {
    fail(
        fmt::format("the key of metadata entry {} has {} bytes, allowed are 1 to {}", index, key.size(), kMaxKeyBytes));
  }
  const std::string part = fmt::format("key '{}'", shown(key));
  GgufEntry entry{};
  entry.key = key;
  entry.type = read_type(part);
  entry.element_type = entry.type;
  entry.length = 1;
  if (entry.type == GgufType::array) {
    entry.element_type = read_type(part);
    if (entry.element_type == GgufType::array) fail(part + " is an array of arrays, which is not supported");
    const auto length = read<std::uint64_t>(part);
    const bool strings = entry.element_type == GgufType::string;
    const std::size_t element = strings ? sizeof(std::uint64_t) : gguf_type_bytes(entry.element_type);
    if (length > left() / element) {
      fail(fmt::format("{} claims {} elements of at least {} bytes at offset {}, the file has {} bytes", part, length,
                       element, pos_, bytes_.size()));
    }
    entry.length = static_cast<std::size_t>(length);
  }
  const std::size_t begin = pos_;
  if (entry.element_type == GgufType::string) {
    for (std::size_t i = 0; i < entry.length; ++i) read_string(part);
  } else {
    const std::size_t bytes = gguf_type_bytes(entry.element_type) * entry.length;
    need(bytes, part);
    pos_ += bytes;
  }
  entry.bytes = bytes_.subspan(begin, pos_ - begin);
  entries_.push_back(entry);
}

void GgufParser::read_alignment() {
  const GgufEntry* entry = parts_.metadata.find("general.alignment");
  if (!entry) return;
  if (entry->type != GgufType::u32) {
    fail(fmt::format("key 'general.alignment' has type {}, needed u32", gguf_type_name(entry->type)));
  }
  std::uint32_t alignment = 0;
  std::memcpy(&alignment, entry->bytes.data(), sizeof(alignment));
  if (alignment < 8 || alignment > kMaxAlignment || !std::has_single_bit(alignment)) {
    fail(fmt::format("key 'general.alignment' is {}, needed a power of two from 8 to {}", alignment, kMaxAlignment));
  }
  alignment_ = alignment;
}

void GgufParser::read_tensor() {
  const auto index = parts_.tensors.size();
  ModelTensor tensor{};
  tensor.name = read_string(fmt::format("the name of tensor {} of {}", index, num_tensors_));
  const std::string part = fmt::format("tensor '{}'", shown(tensor.name));
  const auto rank = read<std::uint32_t>(part);
  if (rank < 1 || rank > kMaxRank) fail(fmt::format("{} has {} dimensions, allowed are 1 to {}", part, rank, kMaxRank));
  tensor.rank = rank;
  tensor.num_elements = 1;
  for (std::size_t i = 0; i < rank; ++i) {
    const auto dim = read<std::uint64_t>(part);
    if (dim == 0) fail(fmt::format("{} has dimension {} of length 0", part, i));
    // Signed limit: shapes and strides elsewhere are signed.
    constexpr std::uint64_t kMaxElements = std::numeric_limits<std::int64_t>::max();
    if (dim > kMaxElements / tensor.num_elements) {
      fail(fmt::format("{} has more than 2^63 elements: dimension {} is {}", part, i, dim));
    }
    tensor.num_elements *= static_cast<std::size_t>(dim);
    tensor.dims[rank - 1 - i] = static_cast<std::size_t>(dim);
  }
  const auto type = read<std::uint32_t>(part);
  const std::optional<DType> dtype = dtype_from_ggml(type);
  if (!dtype) fail(fmt::format("{} has type {}, which is not supported", part, type));
  tensor.dtype = *dtype;
  const DTypeInfo& info = dtype_info(*dtype);
  if (tensor.cols() % info.block_len != 0) {
    fail(fmt::format("{} has rows of {} elements, {} needs a multiple of {}", part, tensor.cols(), info.name,
                     info.block_len));
  }
  const std::size_t num_blocks = tensor.num_elements / info.block_len;
  if (num_blocks > bytes_.size() / info.block_bytes) {
    fail(fmt::format("{} needs {} blocks of {} bytes, the file has {} bytes", part, num_blocks, info.block_bytes,
                     bytes_.size()));
  }
  tensor.bytes = tensor.stored_bytes = num_blocks * info.block_bytes;
  const auto offset = read<std::uint64_t>(part);
  if (offset % alignment_ != 0) {
    fail(fmt::format("{} starts at offset {}, needed a multiple of {}", part, offset, alignment_));
  }
  if (offset > bytes_.size()) {
    fail(fmt::format("{} starts at offset {}, the file has {} bytes", part, offset, bytes_.size()));
  }
  tensor.offset = static_cast<std::size_t>(offset);
  parts_.tensors.push_back(tensor);
}

void GgufParser::place_tensors() {
  auto& tensors = parts_.tensors;
  if (tensors.empty()) return;
  const std::size_t padding = (alignment_ - pos_ % alignment_) % alignment_;
  if (padding > left()) {
    fail(fmt::format("tensor data starts at offset {}, the file has {} bytes", pos_ + padding, bytes_.size()));
  }
  const std::size_t data_begin = pos_ + padding;
  const std::size_t data_bytes = bytes_.size() - data_begin;
  for (ModelTensor& tensor : tensors) {
    if (tensor.offset > data_bytes || tensor.bytes > data_bytes - tensor.offset) {
      fail(fmt::format("tensor '{}' needs {} bytes at offset {}, the file has {} bytes", shown(tensor.name),
                       tensor.bytes, data_begin + tensor.offset, bytes_.size()));
    }
    tensor.offset += data_begin;
  }
  // Tensors that share bytes would make a small file unpack into any amount of memory.
  std::vector<std::uint32_t> order(tensors.size());
  std::iota(order.begin(), order.end(), 0u);
  std::ranges::sort(order, {}, [&](std::uint32_t i) { return tensors[i].offset; });
  for (std::size_t i = 1; i < order.size(); ++i) {
    const ModelTensor& before = tensors[order[i - 1]];
    const ModelTensor& tensor = tensors[order[i]];
    if (tensor.offset - before.offset < before.bytes) {
      fail(fmt::format("tensors '{}' and '{}' share bytes at offset {}", shown(before.name), shown(tensor.name),
                       tensor.offset));
    }
  }
}

}  // namespace

ModelFileParts read_gguf(MappedFile file) {
  ModelFileParts parts = GgufParser(file).parse();
  parts.path = file.path();
  parts.files.push_back(std::move(file));
  return parts;
}

}  // namespace ops_transformer::llm
