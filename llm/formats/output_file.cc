// SPDX-License-Identifier: Apache-2.0
#include "llm/formats/output_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "ops_transformer/base/error.h"

namespace ops_transformer::llm {

OutputFile::OutputFile(const std::string& path, std::size_t size, bool overwrite) : path_(path), overwrite_(overwrite) {
  check_target();
  for (int attempt = 0; descriptor_ < 0; ++attempt) {
    temporary_ = fmt::format("{}.{}-{}.part", path, ::getpid(), attempt);
    descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor_ < 0 && (errno != EEXIST || attempt == 100)) fail(errno);
  }
  // Says at once where there is no room. File systems that can't reserve say so while they are written to.
  if (size > 0 && ::fallocate(descriptor_, 0, 0, off_t(size)) != 0 &&
      (errno == ENOSPC || errno == EFBIG || errno == EDQUOT)) {
    const int error = errno;
    ::close(descriptor_);
    ::unlink(temporary_.c_str());
    fail(error);
  }
}

OutputFile::~OutputFile() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  ::unlink(temporary_.c_str());
}

void OutputFile::fail(int error) const {
  throw SystemFailure(fmt::format("{}: can't be written: {}", path_, std::strerror(error)));
}

void OutputFile::check_target() const {
  struct stat status{};
  if (::stat(path_.c_str(), &status) != 0) {
    if (errno != ENOENT) fail(errno);
    return;
  }
  if (!S_ISREG(status.st_mode)) throw InvalidArgument(fmt::format("output: {} is not a regular file", path_));
  if (!overwrite_) throw InvalidArgument(fmt::format("output: {} is there already", path_));
}

void OutputFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(descriptor_, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail(errno);
    bytes = bytes.subspan(std::size_t(n));
    written_ += std::size_t(n);
  }
}

void OutputFile::finish() {
  if (::fsync(descriptor_) != 0) fail(errno);
  check_target();
  const unsigned keep_other = overwrite_ ? 0 : RENAME_NOREPLACE;  // of a file that came meanwhile
  if (::renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, path_.c_str(), keep_other) != 0 &&
      (errno != EINVAL || ::rename(temporary_.c_str(), path_.c_str()) != 0)) {
    fail(errno);
  }
  const int descriptor = descriptor_;
  descriptor_ = -1;
  if (::close(descriptor) != 0) fail(errno);
}

}  // namespace ops_transformer::llm
