// SPDX-License-Identifier: Apache-2.0
#include "llm/formats/safetensors.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "llm/formats/model_file.h"
#include "llm/formats/quantise.h"
#include "ops_transformer/base/error.h"
#include "tests/support/gguf_writer.h"

namespace ops_transformer::llm {
namespace {

std::string file_of(const std::string& header, std::size_t data_bytes) {
  return test::GgufWriter::raw(std::uint64_t{header.size()}) + header + std::string(data_bytes, 'd');
}

std::string refusal(const std::string& bytes) {
  try {
    read_safetensors(MappedFile::borrow(std::as_bytes(std::span(bytes)), "memory"));
  } catch (const InvalidFile& error) {
    return error.what();
  }
  return "";
}

void expect_refusal(const std::string& bytes, const std::vector<std::string>& parts) {
  const std::string message = refusal(bytes);
  EXPECT_NE(message, "") << "accepted: " << bytes.substr(0, 200);
  for (const std::string& part : parts) EXPECT_NE(message.find(part), std::string::npos) << message << " / " << part;
}

std::string tensor(const std::string& name, const std::string& dtype, const std::string& shape,
                   const std::string& offsets) {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}";
}

TEST(Safetensors, ReadsWhatIsThere) {
  const std::string bytes = file_of("{\"__metadata__\":{\"format\":\"pt\"}," + tensor("b", "BF16", "[2,3]", "[4,16]") +
                                        "," + tensor("a", "F32", "[]", "[0,4]") + "}   ",
                                    16);
  const auto tensors = read_safetensors(MappedFile::borrow(std::as_bytes(std::span(bytes)), "memory"));
  ASSERT_EQ(tensors.size(), 2u);
  EXPECT_EQ(tensors[0].name, "a");
  EXPECT_EQ(tensors[0].rank, 1u);
  EXPECT_EQ(tensors[0].num_elements, 1u);
  EXPECT_EQ(tensors[0].offset, bytes.size() - 16);
  EXPECT_EQ(tensors[1].dtype, DType::bf16);
  EXPECT_EQ(tensors[1].rank, 2u);
  EXPECT_EQ(tensors[1].dims[1], 3u);
  EXPECT_EQ(tensors[1].bytes, 12u);
  EXPECT_EQ(refusal(file_of("{}", 0)), "");
}

TEST(Safetensors, HeaderMustFit) {
  expect_refusal("", {"at least 8 bytes", "has 0"});
  expect_refusal("1234567", {"has 7"});
  for (const std::uint64_t size : {~0ull, 1ull << 63, 1ull << 40, 3ull}) {
    expect_refusal(test::GgufWriter::raw(size) + "{}", {std::to_string(size), "the file has 10 bytes"});
  }
  const std::string whole = file_of("{" + tensor("a", "F32", "[2]", "[0,8]") + "}", 8);
  for (std::size_t size = 0; size < whole.size(); ++size) EXPECT_NE(refusal(whole.substr(0, size)), "") << size;
  expect_refusal(whole + "x", {"the last 1 bytes belong to no tensor"});
}

TEST(Safetensors, HeaderMustBeOfTheFormatsForm) {
  const auto with = [](const std::string& header) { return file_of(header, 8); };
  for (const char* header : {"", "[]", "3", "null", "\"x\"", "true", "-1", "1.5"})
    expect_refusal(with(header), {"the header is"});
  expect_refusal(with("{\"a\":3}"), {"tensor 'a'", "a number"});
  expect_refusal(with("{\"a\":[]}"), {"tensor 'a'", "a list"});
  expect_refusal(with("{\"a\":{}}"), {"tensor 'a' lacks"});
  expect_refusal(with("{\"a\":{\"x\":3}}"), {"unknown field 'x'"});
  expect_refusal(with("{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\"}}"), {"has dtype twice"});
  expect_refusal(with("{\"a\":{\"dtype\":{}}}"), {"an object"});
  expect_refusal(with("{\"a\":{\"dtype\":null}}"), {"null"});
  expect_refusal(with("{\"a\":{\"dtype\":true}}"), {"a truth value"});
  expect_refusal(with("{\"__metadata__\":{\"a\":[]}}"), {"a list"});
  expect_refusal(with("{" + tensor("a", "F32", "[[2]]", "[0,8]") + "}"), {"tensor 'a'"});
  expect_refusal(with("{" + tensor("a", "F32", "2", "[0,8]") + "}"), {"a number"});
  expect_refusal(with("{" + tensor("a", "F32", "[-2]", "[0,8]") + "}"), {"-2"});
  expect_refusal(with("{" + tensor("a", "F32", "[2.0]", "[0,8]") + "}"), {"2.0"});
  expect_refusal(with("{" + tensor("a", "F32", "[\"2\"]", "[0,8]") + "}"), {"a text"});
  expect_refusal(with("{" + tensor("a", "F32", "[1,1,1,1,2]", "[0,8]") + "}"), {"more than 4 dimensions"});
  expect_refusal(with("{" + tensor("a", "F32", "[2]", "[0,4,8]") + "}"), {"more than two data_offsets"});
  expect_refusal(with("{" + tensor("a", "F32", "[2]", "[8]") + "}"), {"lacks"});
  expect_refusal(with("{" + tensor("a", "F32", "[2]", "[0,8]") + "} x"), {"not JSON at byte"});
  expect_refusal(with("{" + tensor("a", "F32", "[2]", "[0,8]")), {"not JSON"});
  expect_refusal(with("{" + tensor("a", "F32", "[2]", "[0,8]") + "," + tensor("a", "F32", "[2]", "[0,8]") + "}"),
                 {"'a' stands twice"});
  expect_refusal(with(std::string(100000, '[')), {"a list"});
  expect_refusal(with("{\"a\":" + std::string(100000, '[')), {"tensor 'a'"});
}

TEST(Safetensors, TensorsAreCheckedBeforeUse) {
  const auto with = [](const std::string& dtype, const std::string& shape, const std::string& offsets) {
    return file_of("{" + tensor("t", dtype, shape, offsets) + "}", 8);
  };
  expect_refusal(with("X9", "[2]", "[0,8]"), {"tensor 't'", "type 'X9'"});
  expect_refusal(with("F8_E4M3", "[8]", "[0,8]"), {"tensor 't'", "'F8_E4M3'"});
  expect_refusal(with("F32", "[0]", "[0,0]"), {"dimension 0 of length 0"});
  expect_refusal(with("F32", "[4294967296,4294967296]", "[0,8]"), {"more than 2^63 elements"});
  expect_refusal(with("F32", "[18446744073709551615]", "[0,8]"), {"more than 2^63 elements"});
  expect_refusal(with("F32", "[4611686018427387904]", "[0,8]"), {"4611686018427387904 elements", "8 bytes"});
  expect_refusal(with("F32", "[3]", "[0,8]"), {"3 elements of 4 bytes", "8 bytes"});
  expect_refusal(with("F32", "[2]", "[0,9]"), {"byte 0 to 9", "8 bytes"});
  expect_refusal(with("F32", "[2]", "[8,0]"), {"byte 8 to 0"});
  expect_refusal(with("F32", "[2]", "[18446744073709551608,18446744073709551615]"), {"8 bytes"});
  const auto two = [](const std::string& first, const std::string& second, std::size_t bytes) {
    return file_of("{" + tensor("a", "F32", "[2]", first) + "," + tensor("b", "F32", "[2]", second) + "}", bytes);
  };
  EXPECT_EQ(refusal(two("[8,16]", "[0,8]", 16)), "");
  expect_refusal(two("[0,8]", "[0,8]", 8), {"share bytes"});
  expect_refusal(two("[0,8]", "[4,12]", 12), {"'a' and 'b' share bytes"});
  expect_refusal(two("[0,8]", "[12,20]", 20), {"4 bytes before tensor 'b' belong to none"});
  expect_refusal(two("[4,12]", "[12,20]", 20), {"4 bytes before tensor 'a'"});
}

TEST(ModelFile, FoldersWithoutTheirFiles) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::temp_directory_path() / ("safetensors_test_" + std::to_string(::getpid()));
  fs::create_directory(folder);
  EXPECT_THROW(ModelFile::open(folder), SystemFailure);
  ASSERT_EQ(::mkfifo((folder / "config.json").c_str(), 0600), 0);
  EXPECT_THROW(ModelFile::open(folder), SystemFailure);  // without waiting for a writer
  fs::remove(folder / "config.json");
  std::ofstream(folder / "config.json") << "{}";
  EXPECT_THROW(ModelFile::open(folder), InvalidFile);
  EXPECT_THROW(ModelFile::open(folder / "model.safetensors"), InvalidFile);
  fs::remove_all(folder);
}

TEST(Quantise, RoundsToNearest) {
  std::vector<float> values(32, 0.0f);
  std::vector<std::byte> out(34, std::byte{0xff});
  EXPECT_EQ(quantise_row(DType::q8_0, values, out), std::nullopt);
  EXPECT_EQ(out, std::vector<std::byte>(34));
  values[3] = 127;
  values[4] = -2.5f;  // away from zero
  EXPECT_EQ(quantise_row(DType::q8_0, values, out), std::nullopt);
  EXPECT_EQ(std::int8_t(out[2 + 3]), 127);
  EXPECT_EQ(std::int8_t(out[2 + 4]), -3);
  values[5] = 1e30f;
  EXPECT_EQ(quantise_row(DType::q8_0, values, out), 1e30f);
  values[5] = std::numeric_limits<float>::infinity();
  EXPECT_EQ(quantise_row(DType::q8_0, values, out), values[5]);
  EXPECT_FALSE(can_quantise(DType::q4_k));
}

}  // namespace
}  // namespace ops_transformer::llm
