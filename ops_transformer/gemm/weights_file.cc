// SPDX-License-Identifier: Apache-2.0
// PackedWeights in a file: a header of 128 bytes, little-endian, then the packed bytes.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <type_traits>

#include "ops_transformer/gemm/packed_weights.h"
#include "ops_transformer/gemm/weight_format.h"

namespace ops_transformer {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr char kMagic[8] = {'O', 'T', 'W', 'E', 'I', 'G', 'H', 'T'};
constexpr std::uint32_t kVersion = 1;

struct Header {
  char magic[8];
  std::uint32_t version, header_bytes;
  char dtype[16];
  std::int64_t num_outputs, num_inputs, num_gated_outputs;
  std::uint64_t bytes, checksum;
  char scales[16];  // of integer weights
  std::int64_t group_len;
  std::uint32_t has_zeros;
  char reserved[28];
};
static_assert(sizeof(Header) == 128 && std::is_trivially_copyable_v<Header>);

// FNV-1a over words in four lanes: finds damage, proves no origin.
std::uint64_t checksum_of(const std::byte* data, std::size_t bytes) {
  constexpr std::uint64_t kPrime = 0x100000001b3;
  std::uint64_t lanes[4] = {0xcbf29ce484222325, 0x84222325cbf29ce4, 0x9ce484222325cbf2, 0x2325cbf29ce48422};
  for (std::size_t i = 0; i < bytes; i += 32) {
    std::uint64_t words[4] = {};
    std::memcpy(words, data + i, std::min<std::size_t>(32, bytes - i));
    for (int lane = 0; lane < 4; ++lane) lanes[lane] = (lanes[lane] ^ words[lane]) * kPrime;
  }
  std::uint64_t all = bytes;
  for (std::uint64_t lane : lanes) all = (all ^ lane ^ lane >> 29) * kPrime;
  return all;
}

// Of the header, its checksum aside, and of what follows.
std::uint64_t checksum_of(Header header, const std::byte* data, std::size_t bytes) {
  header.checksum = 0;
  header.checksum = checksum_of(reinterpret_cast<const std::byte*>(&header), sizeof header);
  return checksum_of(data, bytes) ^ std::rotl(header.checksum, 1);
}

void write_name(DType dtype, char (&name)[16]) { dtype_name(dtype).copy(name, sizeof name - 1); }
std::optional<DType> read_name(const char (&name)[16]) {
  for (int i = 0; i < kNumDTypes; ++i) {
    char known[16] = {};
    write_name(DType(i), known);
    if (std::memcmp(name, known, sizeof known) == 0) return DType(i);
  }
  return std::nullopt;
}

class File {
 public:
  File(const std::string& path, int flags) : path_(path), descriptor_(open(path.c_str(), flags | O_CLOEXEC, 0666)) {
    if (descriptor_ < 0) fail("can't be opened");
  }
  ~File() { close(descriptor_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  std::uint64_t size() const {
    struct stat status{};
    if (fstat(descriptor_, &status) != 0) fail("its size can't be read");
    if (!S_ISREG(status.st_mode)) throw InvalidFile(fmt::format("{}: is not a regular file", path_));
    return std::uint64_t(status.st_size);
  }
  void write_all(const void* data, std::size_t bytes) {
    for (const auto* p = static_cast<const char*>(data); bytes > 0;) {
      const ssize_t n = write(descriptor_, p, std::min<std::size_t>(bytes, kAtOnce));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) fail("can't be written");
      p += n;
      bytes -= std::size_t(n);
    }
  }
  void read_all(void* data, std::size_t bytes) {
    for (auto* p = static_cast<char*>(data); bytes > 0;) {
      const ssize_t n = read(descriptor_, p, std::min<std::size_t>(bytes, kAtOnce));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) fail("can't be read");
      if (n == 0) throw InvalidFile(fmt::format("{}: ends {} bytes early", path_, bytes));
      p += n;
      bytes -= std::size_t(n);
    }
  }
  void sync() {
    if (fsync(descriptor_) != 0) fail("can't be written");
  }

 private:
  static constexpr std::size_t kAtOnce = std::size_t{1} << 30;
  [[noreturn]] void fail(const char* what) const {
    throw SystemFailure(fmt::format("{}: {}: {}", path_, what, std::strerror(errno)));
  }
  std::string path_;
  int descriptor_;
};

[[noreturn]] void refuse(const std::string& path, const std::string& message) {
  throw InvalidFile(fmt::format("{}: {}", path, message));
}

}  // namespace

void PackedWeights::save(const std::string& path) const {
  Header header{};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  header.version = kVersion;
  header.header_bytes = sizeof header;
  write_name(dtype_, header.dtype);
  write_name(scaling_.scales, header.scales);
  header.group_len = scaling_.group_len;
  header.has_zeros = scaling_.has_zeros;
  header.num_outputs = num_outputs_;
  header.num_inputs = num_inputs_;
  header.num_gated_outputs = num_gated_outputs_;
  header.bytes = bytes_;
  header.checksum = checksum_of(header, data_, bytes_);
  // Beside the target, then moved over it: nobody reads half a file.
  const std::string part = fmt::format("{}.{}.part", path, getpid());
  try {
    File file(part, O_WRONLY | O_CREAT | O_TRUNC);
    file.write_all(&header, sizeof header);
    file.write_all(data_, bytes_);
    file.sync();
  } catch (...) {
    unlink(part.c_str());
    throw;
  }
  if (std::rename(part.c_str(), path.c_str()) != 0) {
    const int error = errno;
    unlink(part.c_str());
    throw SystemFailure(fmt::format("{}: can't rename to it: {}", path, std::strerror(error)));
  }
}

PackedWeights PackedWeights::load(const std::string& path) {
  File file(path, O_RDONLY | O_NONBLOCK);  // a pipe without a writer is refused, not waited for
  const std::uint64_t size = file.size();
  Header header{};
  if (size < sizeof header) refuse(path, fmt::format("has {} bytes, a header needs {}", size, sizeof header));
  file.read_all(&header, sizeof header);
  if (std::memcmp(header.magic, kMagic, sizeof kMagic) != 0) refuse(path, "holds no packed weights");
  if (header.version != kVersion || header.header_bytes != sizeof header)
    refuse(path, fmt::format("is of version {}, must be {}", header.version, kVersion));
  const auto dtype = read_name(header.dtype), scales = read_name(header.scales);
  if (!dtype || !find_weight_format(*dtype) || !scales || header.has_zeros > 1) refuse(path, "is of an unknown dtype");
  PackedWeights weights;
  weights.dtype_ = *dtype;
  weights.scaling_ = {header.group_len, *scales, header.has_zeros != 0};
  weights.num_outputs_ = header.num_outputs;
  weights.num_inputs_ = header.num_inputs;
  weights.num_gated_outputs_ = header.num_gated_outputs;
  try {
    weights.bytes_ = packed_bytes(*dtype, header.num_outputs, header.num_inputs, weights.scaling_);
  } catch (const InvalidArgument& error) {
    refuse(path, error.what());
  }
  const auto block_len = std::int64_t(dtype_info(*dtype).block_len);
  if (header.num_inputs % block_len != 0)
    refuse(path, fmt::format("has {} inputs, must be a multiple of {}", header.num_inputs, block_len));
  // Weights of pack_gate_up are two tiles for each 16 gated outputs.
  const std::int64_t gated = header.num_gated_outputs;
  if (gated < 0 || gated > header.num_outputs ||
      (gated > 0 && header.num_outputs != 2 * std::int64_t(align_up(std::size_t(gated), kTileOutputs)))) {
    refuse(path, fmt::format("has {} gated outputs of {}", gated, header.num_outputs));
  }
  if (header.bytes != weights.bytes_ || header.bytes != size - sizeof header) {
    refuse(path, fmt::format("{} x {} {} need {} bytes; it says {} and has {}", header.num_outputs, header.num_inputs,
                             dtype_name(*dtype), weights.bytes_, header.bytes, size - sizeof header));
  }
  file.read_all(weights.take_memory("PackedWeights::load", {}), weights.bytes_);
  const std::uint64_t checksum = checksum_of(header, weights.data_, weights.bytes_);
  if (checksum != header.checksum)
    refuse(path, fmt::format("is damaged: its checksum is {:016x}, must be {:016x}", checksum, header.checksum));
  return weights;
}

}  // namespace ops_transformer
