// SPDX-License-Identifier: Apache-2.0
#include "llm/gguf.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>

#include "llm/gguf_parser.h"

namespace ops_transformer::llm {

static_assert(std::endian::native == std::endian::little, "GGUF is read in place, on little-endian machines only");

GgufFile GgufFile::open(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) throw SystemFailure(fmt::format("{}: can't be opened: {}", path, std::strerror(errno)));
  struct stat status{};
  if (::fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(descriptor);
    throw SystemFailure(fmt::format("{}: is not a regular file", path));
  }
  GgufFile file;
  file.path_ = path;
  file.descriptor_ = descriptor;
  if (const auto size = static_cast<std::size_t>(status.st_size); size > 0) {
    void* base = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor, 0);
    if (base == MAP_FAILED) {
      throw SystemFailure(fmt::format("{}: {} bytes can't be mapped: {}", path, size, std::strerror(errno)));
    }
    file.bytes_ = {static_cast<const std::byte*>(base), size};
  }
  GgufParser(file).parse();
  return file;
}

GgufFile GgufFile::from_memory(std::span<const std::byte> bytes, std::string name) {
  if (reinterpret_cast<std::uintptr_t>(bytes.data()) % 8 != 0) {
    throw InvalidArgument(fmt::format("bytes: address {} is not aligned to 8", fmt::ptr(bytes.data())));
  }
  GgufFile file;
  file.path_ = std::move(name);
  file.bytes_ = bytes;
  GgufParser(file).parse();
  return file;
}

GgufFile::GgufFile(GgufFile&& other) noexcept { *this = std::move(other); }

GgufFile& GgufFile::operator=(GgufFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(bytes_, other.bytes_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(version_, other.version_);
  std::swap(alignment_, other.alignment_);
  std::swap(metadata_, other.metadata_);
  std::swap(tensors_, other.tensors_);
  std::swap(by_name_, other.by_name_);
  return *this;
}

GgufFile::~GgufFile() {
  if (descriptor_ < 0) return;
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
  ::close(descriptor_);
}

const GgufTensor* GgufFile::find_tensor(std::string_view name) const noexcept {
  const auto at = std::lower_bound(by_name_.begin(), by_name_.end(), name,
                                   [&](std::uint32_t i, std::string_view n) { return tensors_[i].name < n; });
  return at != by_name_.end() && tensors_[*at].name == name ? &tensors_[*at] : nullptr;
}

const GgufTensor& GgufFile::tensor(std::string_view name) const {
  const GgufTensor* found = find_tensor(name);
  if (!found) throw InvalidFile(fmt::format("{}: tensor '{}' is missing", path_, name));
  return *found;
}

void GgufFile::read(const GgufTensor& tensor, std::size_t offset, std::span<std::byte> out) const {
  if (offset > tensor.bytes || out.size() > tensor.bytes - offset) {
    throw InvalidArgument(fmt::format("read: {} bytes from offset {} reach past tensor {} of {} bytes", out.size(),
                                      offset, tensor.name, tensor.bytes));
  }
  if (descriptor_ < 0) {
    std::ranges::copy(data(tensor).subspan(offset, out.size()), out.begin());
    return;
  }
  for (std::size_t done = 0; done < out.size();) {
    const ssize_t n = ::pread(descriptor_, out.data() + done, out.size() - done, off_t(tensor.offset + offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      throw SystemFailure(fmt::format("{}: tensor {} can't be read: {}", path_, tensor.name,
                                      n < 0 ? std::strerror(errno) : "the file was cut"));
    }
    done += std::size_t(n);
  }
}

void GgufFile::drop_pages(const GgufTensor& tensor) const noexcept {
  if (descriptor_ < 0) return;
  // Pages shared with a neighbour go too: a read-only file page comes back unchanged on the next touch.
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t begin = tensor.offset / page * page;
  ::madvise(const_cast<std::byte*>(bytes_.data()) + begin, tensor.offset + tensor.bytes - begin, MADV_DONTNEED);
}

}  // namespace ops_transformer::llm
