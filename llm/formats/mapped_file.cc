// SPDX-License-Identifier: Apache-2.0
#include "llm/formats/mapped_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "ops_transformer/base/error.h"

namespace ops_transformer::llm {

MappedFile MappedFile::open(const std::string& path) {
  MappedFile file;
  file.path_ = path;
  // O_NONBLOCK: opening a pipe would wait for its writer.
  file.descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file.descriptor_ < 0) throw SystemFailure(fmt::format("{}: can't be opened: {}", path, std::strerror(errno)));
  struct stat status{};
  if (::fstat(file.descriptor_, &status) != 0) {
    throw SystemFailure(fmt::format("{}: its size can't be read: {}", path, std::strerror(errno)));
  }
  if (!S_ISREG(status.st_mode)) throw SystemFailure(fmt::format("{}: is not a regular file", path));
  if (const auto size = static_cast<std::size_t>(status.st_size); size > 0) {
    void* base = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.descriptor_, 0);
    if (base == MAP_FAILED) {
      throw SystemFailure(fmt::format("{}: {} bytes can't be mapped: {}", path, size, std::strerror(errno)));
    }
    file.bytes_ = {static_cast<const std::byte*>(base), size};
  }
  return file;
}

MappedFile MappedFile::borrow(std::span<const std::byte> bytes, std::string name) {
  MappedFile file;
  file.path_ = std::move(name);
  file.bytes_ = bytes;
  return file;
}

MappedFile::MappedFile(MappedFile&& other) noexcept { *this = std::move(other); }

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(bytes_, other.bytes_);
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

MappedFile::~MappedFile() {
  if (descriptor_ < 0) return;
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
  ::close(descriptor_);
}

void MappedFile::read(std::size_t offset, std::span<std::byte> out, std::string_view part) const {
  if (descriptor_ < 0) {
    std::ranges::copy(bytes_.subspan(offset, out.size()), out.begin());
    return;
  }
  for (std::size_t done = 0; done < out.size();) {
    const ssize_t n = ::pread(descriptor_, out.data() + done, out.size() - done, off_t(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      throw SystemFailure(
          fmt::format("{}: {} can't be read: {}", path_, part, n < 0 ? std::strerror(errno) : "the file was cut"));
    }
    done += std::size_t(n);
  }
}

void MappedFile::drop_pages(std::size_t offset, std::size_t size) const noexcept {
  if (descriptor_ < 0) return;
  // Pages shared with a neighbour go too: a read-only file page comes back unchanged on the next touch.
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t begin = offset / page * page;
  ::madvise(const_cast<std::byte*>(bytes_.data()) + begin, offset + size - begin, MADV_DONTNEED);
}

}  // namespace ops_transformer::llm
