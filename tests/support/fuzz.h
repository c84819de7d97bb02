// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

/// A property that holds for every input: the fuzzer reports the input that breaks it.
#define FUZZ_CHECK(property)                                                             \
  do {                                                                                   \
    if (!(property)) {                                                                   \
      std::fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #property); \
      std::abort();                                                                      \
    }                                                                                    \
  } while (false)

namespace ops_transformer::test {

/// A file that goes away with the object.
class FuzzFile {
 public:
  explicit FuzzFile(const std::string& bytes) {
    const int descriptor = ::mkstemp(path_);
    FUZZ_CHECK(descriptor >= 0);
    FUZZ_CHECK(::write(descriptor, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
    ::close(descriptor);
  }
  ~FuzzFile() { std::remove(path_); }
  FuzzFile(const FuzzFile&) = delete;
  FuzzFile& operator=(const FuzzFile&) = delete;
  std::string path() const { return path_; }

 private:
  char path_[32] = "/tmp/fuzz_XXXXXX";
};

}  // namespace ops_transformer::test
