// SPDX-License-Identifier: Apache-2.0
// feeds: ops_transformer/gemm/weights_file.cc
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>

#include "ops_transformer/base/error.h"
#include "ops_transformer/gemm/packed_weights.h"
#include "tests/support/fuzz.h"

namespace ops_transformer {
namespace {

std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// What load takes is whole, and saved again it is the file it came from, but for bytes that mean nothing.
void check(const PackedWeights& weights, const std::string& file) {
  FUZZ_CHECK(weights.num_outputs() >= 0 && weights.num_inputs() >= 0 && weights.num_gated_outputs() >= 0);
  FUZZ_CHECK(weights.bytes() + 128 == file.size());
  FUZZ_CHECK(weights.bytes() == PackedWeights::packed_bytes(weights.dtype(), weights.num_outputs(),
                                                            weights.num_inputs(), weights.scaling()));
  FUZZ_CHECK(std::equal(weights.data(), weights.data() + weights.bytes(), std::as_bytes(std::span(file)).data() + 128));
  const test::FuzzFile again("");
  weights.save(again.path());
  FUZZ_CHECK(contents(again.path()).substr(128) == file.substr(128));
  const PackedWeights loaded = PackedWeights::load(again.path());
  FUZZ_CHECK(loaded.dtype() == weights.dtype() && loaded.scaling() == weights.scaling());
  FUZZ_CHECK(loaded.num_gated_outputs() == weights.num_gated_outputs());
}

}  // namespace
}  // namespace ops_transformer

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ops_transformer;
  constexpr std::size_t kChecksumAt = 64;
  constexpr std::string_view kSays = "its checksum is ";
  std::string bytes(reinterpret_cast<const char*>(data), size);
  for (const bool mended : {false, true}) {
    try {
      const test::FuzzFile file(bytes);
      check(PackedWeights::load(file.path()), bytes);
      break;
    } catch (const InvalidFile& error) {
      // No mutation finds the checksum, so the refusal tells it.
      const std::string message = error.what();
      const std::size_t at = message.find(kSays);
      if (at == std::string::npos) break;
      FUZZ_CHECK(!mended);
      const std::uint64_t checksum = std::stoull(message.substr(at + kSays.size(), 16), nullptr, 16);
      std::memcpy(bytes.data() + kChecksumAt, &checksum, sizeof checksum);
    }
  }
  const std::string missing = "/nonexistent/weights";
  for (const auto& attempt : {+[](const std::string& path) { PackedWeights::load(path); },
                              +[](const std::string& path) { PackedWeights().save(path); }}) {
    try {
      attempt(missing);
      FUZZ_CHECK(false);
    } catch (const SystemFailure&) {
    }
  }
  return 0;
}
