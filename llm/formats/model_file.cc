// SPDX-License-Identifier: Apache-2.0
#include "llm/formats/model_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <map>
#include <mutex>
#include <numeric>
#include <utility>

#include "llm/formats/gguf_parser.h"
#include "llm/formats/safetensors_folder.h"
#include "llm/tokenizer/utf8.h"

namespace ops_transformer::llm {

static_assert(std::endian::native == std::endian::little, "files are read in place, on little-endian machines only");

/// Tensors that were made from stored bytes, by index, until drop_pages.
struct ModelFile::Made {
  std::mutex mutex;
  std::map<std::size_t, std::vector<std::byte>> tensors;
};

ModelFile ModelFile::open(const std::string& path) {
  return ModelFile(is_safetensors_folder(path) ? read_safetensors_folder(path) : read_gguf(MappedFile::open(path)));
}

ModelFile ModelFile::from_memory(std::span<const std::byte> bytes, std::string name) {
  if (reinterpret_cast<std::uintptr_t>(bytes.data()) % 8 != 0) {
    throw InvalidArgument(fmt::format("bytes: address {} is not aligned to 8", fmt::ptr(bytes.data())));
  }
  return ModelFile(read_gguf(MappedFile::borrow(bytes, std::move(name))));
}

ModelFile::ModelFile(ModelFile&&) noexcept = default;
ModelFile& ModelFile::operator=(ModelFile&&) noexcept = default;
ModelFile::~ModelFile() = default;

ModelFile::ModelFile(ModelFileParts parts)
    : parts_(std::move(parts)), by_name_(parts_.tensors.size()), made_(std::make_unique<Made>()) {
  std::iota(by_name_.begin(), by_name_.end(), 0u);
  const auto name_of = [this](std::uint32_t i) { return parts_.tensors[i].name; };
  std::ranges::sort(by_name_, {}, name_of);
  const auto twice = std::ranges::adjacent_find(by_name_, {}, name_of);
  if (twice != by_name_.end()) {
    throw InvalidFile(fmt::format("{}: tensor '{}' stands twice", parts_.path, shown(name_of(*twice))));
  }
}

std::size_t ModelFile::size() const noexcept {
  std::size_t bytes = 0;
  for (const MappedFile& file : parts_.files) bytes += file.bytes().size();
  return bytes;
}

const ModelTensor* ModelFile::find_tensor(std::string_view name) const noexcept {
  const auto at = std::lower_bound(by_name_.begin(), by_name_.end(), name,
                                   [&](std::uint32_t i, std::string_view n) { return parts_.tensors[i].name < n; });
  return at != by_name_.end() && parts_.tensors[*at].name == name ? &parts_.tensors[*at] : nullptr;
}

const ModelTensor& ModelFile::tensor(std::string_view name) const {
  const ModelTensor* found = find_tensor(name);
  if (!found) throw InvalidFile(fmt::format("{}: tensor '{}' is missing", parts_.path, shown(name)));
  return *found;
}

const TensorMaker* ModelFile::maker_of(const ModelTensor& tensor) const noexcept {
  if (parts_.makers.empty()) return nullptr;
  const TensorMaker& maker = parts_.makers[index_of(tensor)];
  return maker ? &maker : nullptr;
}

std::span<const std::byte> ModelFile::data(const ModelTensor& tensor) const {
  const auto stored = parts_.files[tensor.file].bytes().subspan(tensor.offset, tensor.stored_bytes);
  const TensorMaker* make = maker_of(tensor);
  if (!make) return stored;
  const std::lock_guard lock(made_->mutex);
  std::vector<std::byte>& made = made_->tensors[index_of(tensor)];
  if (made.empty()) {
    std::vector<std::byte> bytes(tensor.bytes);
    (*make)(stored, bytes);
    made = std::move(bytes);
  }
  return made;
}

void ModelFile::read(const ModelTensor& tensor, std::size_t offset, std::span<std::byte> out) const {
  if (offset > tensor.bytes || out.size() > tensor.bytes - offset) {
    throw InvalidArgument(fmt::format("read: {} bytes from offset {} reach past tensor {} of {} bytes", out.size(),
                                      offset, shown(tensor.name), tensor.bytes));
  }
  if (maker_of(tensor)) {
    std::ranges::copy(data(tensor).subspan(offset, out.size()), out.begin());
    return;
  }
  parts_.files[tensor.file].read(tensor.offset + offset, out, fmt::format("tensor {}", shown(tensor.name)));
}

void ModelFile::drop_pages(const ModelTensor& tensor) const noexcept {
  parts_.files[tensor.file].drop_pages(tensor.offset, tensor.stored_bytes);
  const std::lock_guard lock(made_->mutex);
  made_->tensors.erase(index_of(tensor));
}

}  // namespace ops_transformer::llm
