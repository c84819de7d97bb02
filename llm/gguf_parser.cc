// SPDX-License-Identifier: Apache-2.0
#include "llm/gguf_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <numeric>

namespace ops_transformer::llm {
namespace {

constexpr std::uint32_t kMagic = 0x46554747;                // "GGUF"
constexpr std::size_t kMinEntryBytes = 8 + 4 + 1;           // key length, type, a one-byte value
constexpr std::size_t kMinTensorBytes = 8 + 4 + 8 + 4 + 8;  // name length, rank, one dimension, type, offset
constexpr std::size_t kMaxKeyBytes = 65535;                 // the format's limit
constexpr std::uint32_t kMaxRank = 4;
constexpr std::uint32_t kMaxAlignment = 1u << 21;  // a huge page

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

/// Names come from the file: an error message shows at most this much of one.
std::string shown(std::string_view name) {
  std::string text;
  for (const char c : name.substr(0, 100)) {
    text += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
  }
  return name.size() > 100 ? text + "…" : text;
}

std::vector<std::uint32_t> sorted_index(std::size_t size, auto&& name_of) {
  std::vector<std::uint32_t> index(size);
  std::iota(index.begin(), index.end(), 0u);
  std::sort(index.begin(), index.end(), [&](std::uint32_t a, std::uint32_t b) { return name_of(a) < name_of(b); });
  return index;
}

}  // namespace

std::size_t gguf_type_bytes(GgufType type) noexcept { return kTypes[static_cast<std::size_t>(type)].bytes; }
std::string_view gguf_type_name(GgufType type) noexcept { return kTypes[static_cast<std::size_t>(type)].name; }

void GgufParser::fail(const std::string& what) const { throw InvalidFile(fmt::format("{}: {}", file_.path_, what)); }

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

void GgufParser::parse() {
  read_header();
  for (std::uint64_t i = 0; i < num_entries_; ++i) read_entry();
  index_entries();
  read_alignment();
  for (std::uint64_t i = 0; i < num_tensors_; ++i) read_tensor();
  place_tensors();
}

void GgufParser::read_header() {
  const auto magic = read<std::uint32_t>("the header");
  if (magic != kMagic) fail(fmt::format("is not a GGUF file (magic {:08x}, needed {:08x})", magic, kMagic));
  file_.version_ = read<std::uint32_t>("the header");
  if (file_.version_ != 2 && file_.version_ != 3) {
    const bool swapped = (file_.version_ & 0xffff) == 0 && file_.version_ != 0;
    fail(swapped ? std::string("is a big-endian GGUF file; only little-endian ones can be read")
                 : fmt::format("has GGUF version {}; 2 and 3 can be read", file_.version_));
  }
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
  const auto index = file_.metadata_.entries_.size();
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
  file_.metadata_.entries_.push_back(entry);
}

void GgufParser::index_entries() {
  auto& metadata = file_.metadata_;
  const auto key_of = [&](std::uint32_t i) { return metadata.entries_[i].key; };
  metadata.by_key_ = sorted_index(metadata.entries_.size(), key_of);
  for (std::size_t i = 1; i < metadata.by_key_.size(); ++i) {
    const std::string_view key = key_of(metadata.by_key_[i]);
    if (key == key_of(metadata.by_key_[i - 1])) fail(fmt::format("key '{}' stands twice", shown(key)));
  }
}

void GgufParser::read_alignment() {
  const GgufEntry* entry = file_.metadata_.find("general.alignment");
  if (!entry) return;
  if (entry->type != GgufType::u32) {
    fail(fmt::format("key 'general.alignment' has type {}, needed u32", gguf_type_name(entry->type)));
  }
  std::uint32_t alignment = 0;
  std::memcpy(&alignment, entry->bytes.data(), sizeof(alignment));
  if (alignment < 8 || alignment > kMaxAlignment || !std::has_single_bit(alignment)) {
    fail(fmt::format("key 'general.alignment' is {}, needed a power of two from 8 to {}", alignment, kMaxAlignment));
  }
  file_.alignment_ = alignment;
}

void GgufParser::read_tensor() {
  const auto index = file_.tensors_.size();
  GgufTensor tensor{};
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
  tensor.bytes = num_blocks * info.block_bytes;
  const auto offset = read<std::uint64_t>(part);
  if (offset % file_.alignment_ != 0) {
    fail(fmt::format("{} starts at offset {}, needed a multiple of {}", part, offset, file_.alignment_));
  }
  if (offset > bytes_.size()) {
    fail(fmt::format("{} starts at offset {}, the file has {} bytes", part, offset, bytes_.size()));
  }
  tensor.offset = static_cast<std::size_t>(offset);
  file_.tensors_.push_back(tensor);
}

void GgufParser::place_tensors() {
  auto& tensors = file_.tensors_;
  file_.by_name_ = sorted_index(tensors.size(), [&](std::uint32_t i) { return tensors[i].name; });
  for (std::size_t i = 1; i < tensors.size(); ++i) {
    const std::string_view name = tensors[file_.by_name_[i]].name;
    if (name == tensors[file_.by_name_[i - 1]].name) fail(fmt::format("tensor '{}' stands twice", shown(name)));
  }
  if (tensors.empty()) return;
  const std::size_t padding = (file_.alignment_ - pos_ % file_.alignment_) % file_.alignment_;
  if (padding > left()) {
    fail(fmt::format("tensor data starts at offset {}, the file has {} bytes", pos_ + padding, bytes_.size()));
  }
  const std::size_t data_begin = pos_ + padding;
  const std::size_t data_bytes = bytes_.size() - data_begin;
  for (GgufTensor& tensor : tensors) {
    if (tensor.offset > data_bytes || tensor.bytes > data_bytes - tensor.offset) {
      fail(fmt::format("tensor '{}' needs {} bytes at offset {}, the file has {} bytes", shown(tensor.name),
                       tensor.bytes, data_begin + tensor.offset, bytes_.size()));
    }
    tensor.offset += data_begin;
  }
  // Tensors that share bytes would make a small file unpack into any amount of memory.
  const auto order = sorted_index(tensors.size(), [&](std::uint32_t i) { return tensors[i].offset; });
  for (std::size_t i = 1; i < order.size(); ++i) {
    const GgufTensor& before = tensors[order[i - 1]];
    const GgufTensor& tensor = tensors[order[i]];
    if (tensor.offset - before.offset < before.bytes) {
      fail(fmt::format("tensors '{}' and '{}' share bytes at offset {}", shown(before.name), shown(tensor.name),
                       tensor.offset));
    }
  }
}

}  // namespace ops_transformer::llm
