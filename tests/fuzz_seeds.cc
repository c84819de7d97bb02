// SPDX-License-Identifier: Apache-2.0
// Writes what the fuzzers start from: `fuzz_seeds DIR` makes DIR/gguf_fuzz with small GGUF files that use every part of
// the format. The other fuzzers find their way from nothing.
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/gguf_writer.h"
#include "tests/support/small_tokenizer.h"

int main(int argc, char** argv) {
  using ops_transformer::DType;
  using ops_transformer::test::GgufWriter;
  if (argc != 2) return 2;
  const std::filesystem::path folder = std::filesystem::path(argv[1]) / "gguf_fuzz";
  std::filesystem::create_directories(folder);
  int count = 0;
  const auto write = [&](const GgufWriter& writer) {
    std::ofstream(folder / std::to_string(count++), std::ios::binary) << writer.bytes();
  };
  write(GgufWriter());
  write(GgufWriter(2).add_string("general.architecture", "llama"));
  write(GgufWriter(0x03000000));
  GgufWriter types;
  types.add_scalar<std::uint8_t>("u8", 0, 200).add_scalar<std::int8_t>("i8", 1, -7);
  types.add_scalar<std::uint16_t>("u16", 2, 60000).add_scalar<std::int16_t>("i16", 3, -300);
  types.add_u32("u32", 7).add_scalar<std::int32_t>("i32", 5, -3).add_f32("f32", 0.5f).add_bool("bool", true);
  types.add_string("s", "a\n\x1b\"b").add_scalar<std::uint64_t>("u64", 10, ~0ull);
  types.add_scalar<std::int64_t>("i64", 11, -1).add_scalar<double>("f64", 12, 0.25);
  write(types);
  GgufWriter arrays;
  arrays.add_strings("strings", {"a", "", "ccc"}).add_array<std::int32_t>("i32s", 5, {1, 3, -1});
  arrays.add_array<std::uint8_t>("bools", 7, {1, 0}).add_array<float>("floats", 6, {1.5f, -2});
  arrays.add_string("long", std::string(200, 'q'));
  write(arrays);
  GgufWriter tensors;
  tensors.alignment(64).add_u32("general.alignment", 64).add_tensor("norm", DType::f32, {4}, std::string(16, 'n'));
  tensors.add_tensor("weight", DType::q4_1, {3, 64}, std::string(120, 'w'));
  tensors.add_tensor("cube", DType::bf16, {2, 3, 5}, std::string(60, 'c'));
  write(tensors);
  GgufWriter twice;
  twice.add_tensor("t", DType::f32, {1}, "abcd").add_tensor_raw("u", {8}, 0, 0).add_u32("k", 1).add_u32("k", 2);
  write(twice);
  write(GgufWriter().add_tensor("t", DType::f32, {1}, "abcd").add_tensor("t", DType::f32, {1}, "abcd"));
  write(GgufWriter().add_tensor("t", DType::f32, {8}, std::string(32, 'a')).add_tensor_raw("u", {8}, 0, 0));
  return 0;
}
