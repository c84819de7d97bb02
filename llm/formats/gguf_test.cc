// SPDX-License-Identifier: Apache-2.0
#include "llm/formats/model_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <functional>
#include <limits>

#include "tests/support/gguf_writer.h"

namespace ops_transformer::llm {
namespace {

using test::AlignedBytes;
using test::GgufWriter;

/// A file on disk that goes away with the test.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& bytes) {
    const int descriptor = ::mkstemp(path_);
    EXPECT_GE(descriptor, 0);
    EXPECT_EQ(::write(descriptor, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
    ::close(descriptor);
  }
  ~TemporaryFile() { std::remove(path_); }
  std::string path() const { return path_; }

 private:
  char path_[32] = "/tmp/gguf_test_XXXXXX";
};

long resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  long total = 0, resident = 0;
  statm >> total >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

/// The message of the InvalidFile that opening `bytes` throws; empty where it opens. Each refusal must be quick and
/// small.
std::string refusal(const std::string& bytes) {
  const AlignedBytes aligned(bytes);
  const long before = resident_bytes();
  const std::clock_t start = std::clock();
  std::string message;
  try {
    ModelFile::from_memory(aligned.span());
  } catch (const InvalidFile& error) {
    message = error.what();
  }
  EXPECT_LT(std::clock() - start, CLOCKS_PER_SEC);
  EXPECT_LT(resident_bytes() - before, 50 << 20);
  return message;
}

void expect_refusal(const std::string& bytes, const std::vector<std::string>& parts) {
  const std::string message = refusal(bytes);
  EXPECT_NE(message, "") << "the file was accepted";
  for (const std::string& part : parts) EXPECT_NE(message.find(part), std::string::npos) << message << " / " << part;
}

GgufWriter small_file() {
  GgufWriter writer;
  writer.add_string("general.architecture", "llama")
      .add_u32("llama.block_count", 30)
      .add_f32("llama.rope.freq_base", 1e5f)
      .add_bool("tokenizer.ggml.add_bos_token", false)
      .add_strings("tokenizer.ggml.tokens", {"a", "", "ccc"})
      .add_array<std::int32_t>("tokenizer.ggml.token_type", 5, {1, 3, -1})
      .add_tensor("norm", DType::f32, {4}, std::string(16, 'n'))
      .add_tensor("weight", DType::q4_1, {3, 64}, std::string(3 * 2 * 20, 'w'));
  return writer;
}

TEST(Gguf, ReadsWhatWasWritten) {
  for (const std::uint32_t version : {2u, 3u}) {
    GgufWriter writer(version);
    writer.add_string("name", "x").add_tensor("t", DType::bf16, {2, 3, 5}, std::string(60, 'd'));
    const TemporaryFile on_disk(writer.bytes());
    const ModelFile file = ModelFile::open(on_disk.path());
    EXPECT_EQ(file.format(), "GGUF version " + std::to_string(version));
    EXPECT_EQ(file.size(), writer.bytes().size());
    const ModelTensor& tensor = file.tensor("t");
    EXPECT_EQ(tensor.dtype, DType::bf16);
    EXPECT_EQ(std::vector<std::size_t>(tensor.shape().begin(), tensor.shape().end()),
              (std::vector<std::size_t>{2, 3, 5}));
    EXPECT_EQ(tensor.rows(), 6u);
    EXPECT_EQ(tensor.cols(), 5u);
    EXPECT_EQ(file.data(tensor).size(), 60u);
    EXPECT_EQ(file.data(tensor)[59], std::byte{'d'});
    file.drop_pages(tensor);
    EXPECT_EQ(file.data(tensor)[0], std::byte{'d'});
  }
}

TEST(Gguf, MetadataByType) {
  GgufWriter writer = small_file();
  writer.add_scalar<std::uint8_t>("u8", 0, 200)
      .add_scalar<std::int8_t>("i8", 1, -7)
      .add_scalar<std::uint16_t>("u16", 2, 60000)
      .add_scalar<std::int16_t>("i16", 3, -300)
      .add_scalar<std::uint64_t>("u64", 10, std::numeric_limits<std::uint64_t>::max())
      .add_scalar<std::int64_t>("i64", 11, std::numeric_limits<std::int64_t>::min())
      .add_scalar<double>("f64", 12, 0.25)
      .add_scalar<std::uint8_t>("bad_bool", 7, 2)
      .add_array<std::uint16_t>("u16s", 2, {1, 65535})
      .add_array<std::uint8_t>("bools", 7, {1, 0})
      .add_array<float>("floats", 6, {1.5f, -2});
  const AlignedBytes bytes(writer.bytes());
  const ModelFile file = ModelFile::from_memory(bytes.span());
  const GgufMetadata& metadata = file.metadata();
  EXPECT_EQ(metadata.entries().size(), 17u);
  EXPECT_EQ(metadata.require<std::string_view>("general.architecture"), "llama");
  EXPECT_EQ(metadata.require<std::string>("general.architecture"), "llama");
  EXPECT_EQ(metadata.require<std::int32_t>("llama.block_count"), 30);
  EXPECT_EQ(metadata.require<float>("llama.block_count"), 30.0f);
  EXPECT_EQ(metadata.require<float>("llama.rope.freq_base"), 1e5f);
  EXPECT_EQ(metadata.require<double>("f64"), 0.25);
  EXPECT_FALSE(metadata.require<bool>("tokenizer.ggml.add_bos_token"));
  EXPECT_EQ(metadata.require<std::uint32_t>("u8"), 200u);
  EXPECT_EQ(metadata.require<std::int32_t>("i8"), -7);
  EXPECT_EQ(metadata.require<double>("i8"), -7.0);
  EXPECT_EQ(metadata.require<std::uint32_t>("u16"), 60000u);
  EXPECT_EQ(metadata.require<std::int64_t>("i16"), -300);
  EXPECT_EQ(metadata.require<std::uint64_t>("u64"), std::numeric_limits<std::uint64_t>::max());
  EXPECT_EQ(metadata.require<std::int64_t>("i64"), std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(metadata.require<std::vector<std::string_view>>("tokenizer.ggml.tokens"),
            (std::vector<std::string_view>{"a", "", "ccc"}));
  EXPECT_EQ(metadata.require<std::vector<std::int32_t>>("tokenizer.ggml.token_type"),
            (std::vector<std::int32_t>{1, 3, -1}));
  EXPECT_EQ(metadata.require<std::vector<std::uint32_t>>("u16s"), (std::vector<std::uint32_t>{1, 65535}));
  EXPECT_EQ(metadata.require<std::vector<bool>>("bools"), (std::vector<bool>{true, false}));
  EXPECT_EQ(metadata.require<std::vector<float>>("floats"), (std::vector<float>{1.5f, -2}));
  EXPECT_EQ(metadata.get<std::int32_t>("none"), std::nullopt);
  EXPECT_EQ(metadata.get_or<std::int32_t>("none", 5), 5);
  EXPECT_EQ(metadata.find("none"), nullptr);
}

TEST(Gguf, GettersNameTheKey) {
  GgufWriter writer = small_file();
  writer.add_scalar<std::int64_t>("negative", 11, -1).add_scalar<std::uint8_t>("bad_bool", 7, 2);
  writer.add_scalar<std::uint64_t>("large", 10, 1ull << 40);
  const AlignedBytes bytes(writer.bytes());
  const ModelFile file = ModelFile::from_memory(bytes.span());
  const auto message = [&](const std::function<void(const GgufMetadata&)>& get) {
    try {
      get(file.metadata());
    } catch (const InvalidFile& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(message([](auto& m) { m.template require<bool>("none"); }), "key 'none' is missing");
  EXPECT_EQ(message([](auto& m) { m.template require<bool>("llama.block_count"); }),
            "key 'llama.block_count' has type u32, needed bool");
  EXPECT_EQ(message([](auto& m) { m.template require<std::uint32_t>("negative"); }),
            "key 'negative' is -1, needed 0 to 4294967295");
  EXPECT_EQ(message([](auto& m) { m.template require<std::uint64_t>("negative"); }),
            "key 'negative' is -1, needed 0 to 18446744073709551615");
  EXPECT_EQ(message([](auto& m) { m.template require<std::int32_t>("large"); }),
            "key 'large' is 1099511627776, needed -2147483648 to 2147483647");
  EXPECT_EQ(message([](auto& m) { m.template require<bool>("bad_bool"); }),
            "key 'bad_bool' is 2, needed a bool, 0 or 1");
  EXPECT_EQ(message([](auto& m) { m.template require<std::int32_t>("llama.rope.freq_base"); }),
            "key 'llama.rope.freq_base' has type f32, needed an integer");
  EXPECT_EQ(message([](auto& m) { m.template require<float>("general.architecture"); }),
            "key 'general.architecture' has type string, needed a number");
  EXPECT_EQ(message([](auto& m) { m.template require<std::string>("tokenizer.ggml.tokens"); }),
            "key 'tokenizer.ggml.tokens' has type array of string, needed string");
  EXPECT_EQ(message([](auto& m) { m.template get<float>("tokenizer.ggml.token_type"); }),
            "key 'tokenizer.ggml.token_type' has type array of i32, needed a single value");
  EXPECT_EQ(message([](auto& m) { m.template get<std::vector<float>>("llama.block_count"); }),
            "key 'llama.block_count' has type u32, needed an array");
  EXPECT_EQ(message([](auto& m) { m.template get<std::vector<std::string_view>>("tokenizer.ggml.token_type"); }),
            "key 'tokenizer.ggml.token_type' has type array of i32, needed array of string");
  EXPECT_EQ(message([&](auto&) { file.tensor("blk.0"); }), "memory: tensor 'blk.0' is missing");
  EXPECT_EQ(file.find_tensor("zzz"), nullptr);
}

TEST(Gguf, ValueText) {
  GgufWriter writer;
  writer.add_string("s", "a\n\x1b[31m\"b\\").add_u32("u", 7).add_f32("f", 0.5f).add_bool("b", true);
  writer.add_scalar<std::int32_t>("i", 5, -3).add_scalar<double>("d", 12, 1.5);
  writer.add_strings("list", {"x", "y"}).add_array<std::int32_t>("long", 5, std::vector<std::int32_t>(1000, 1));
  writer.add_string("long_string", std::string(500, 'q'));
  const AlignedBytes bytes(writer.bytes());
  const ModelFile file = ModelFile::from_memory(bytes.span());
  const auto text = [&](std::string_view key) { return gguf_value_text(*file.metadata().find(key), 20); };
  EXPECT_EQ(text("s"), "\"a\\n\\x1b[31m\\\"b\\\\\"");
  EXPECT_EQ(text("u"), "7");
  EXPECT_EQ(text("f"), "0.5");
  EXPECT_EQ(text("d"), "1.5");
  EXPECT_EQ(text("b"), "true");
  EXPECT_EQ(text("i"), "-3");
  EXPECT_EQ(text("list"), "2 × string [\"x\", \"y\"]");
  EXPECT_EQ(text("long"), "1000 × i32 [1, 1, 1, …]");
  EXPECT_EQ(text("long_string"), "\"" + std::string(20, 'q') + "…\"");
}

TEST(Gguf, CutAtEveryByteIsRefused) {
  const std::string whole = small_file().bytes();
  EXPECT_EQ(refusal(whole), "");
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const std::string message = refusal(whole.substr(0, size));
    EXPECT_NE(message, "") << "cut to " << size << " of " << whole.size();
    EXPECT_NE(message.find(std::to_string(size)), std::string::npos) << message;
  }
}

TEST(Gguf, CutAtSectionBordersOnDisk) {
  GgufWriter writer = small_file();
  for (int i = 0; i < 40; ++i) {
    writer.add_tensor("blk." + std::to_string(i), DType::q8_0, {64, 256}, std::string(64 * 8 * 34, 'x'));
  }
  const std::string whole = writer.bytes();
  for (const std::size_t border : writer.borders()) {
    for (const std::size_t size : {border - 1, border}) {
      if (size >= whole.size()) continue;
      const TemporaryFile cut(whole.substr(0, size));
      EXPECT_THROW(ModelFile::open(cut.path()), InvalidFile) << size;
    }
  }
  expect_refusal(whole.substr(0, whole.size() - 1),
                 {"tensor 'blk.39' needs 17408 bytes", std::to_string(whole.size() - 1)});
}

TEST(Gguf, LastTensorNeedsNoPadding) {
  GgufWriter writer;
  writer.add_tensor("t", DType::f32, {1}, "abcd");
  EXPECT_EQ(refusal(writer.bytes()), "");
  EXPECT_EQ(writer.bytes().size() % 32, 4u);
}

TEST(Gguf, HugeCountsAreRefused) {
  expect_refusal(small_file().claim_tensors(1ull << 61).bytes(), {"2305843009213693952 tensors", "hold at most"});
  expect_refusal(small_file().claim_entries(1ull << 63).bytes(), {"9223372036854775808 metadata entries"});
  expect_refusal(small_file().claim_entries(7).bytes(), {});
  const auto raw64 = [](std::uint64_t v) { return GgufWriter::raw(v); };
  expect_refusal(GgufWriter().add_raw("s", 8, raw64(1ull << 40) + "x").bytes(), {"key 's' needs 1099511627776 bytes"});
  expect_refusal(GgufWriter().add_raw("s", 8, raw64(~0ull)).bytes(), {"key 's' needs 18446744073709551615 bytes"});
  for (const std::uint32_t type : {0u, 5u, 8u, 12u}) {
    expect_refusal(GgufWriter().add_raw("a", 9, GgufWriter::raw(type) + raw64(1ull << 60)).bytes(),
                   {"key 'a' claims 1152921504606846976 elements"});
    expect_refusal(GgufWriter().add_raw("a", 9, GgufWriter::raw(type) + raw64(~0ull)).bytes(), {"key 'a'"});
  }
  std::string nested;
  for (int i = 0; i < 1000; ++i) nested += GgufWriter::raw<std::uint32_t>(9) + raw64(1);
  expect_refusal(GgufWriter().add_raw("n", 9, nested).bytes(), {"key 'n' is an array of arrays"});
  GgufWriter ranks;
  ranks.add_tensor_raw("t", {1, 1, 1, 1, 1}, 0, 0);
  expect_refusal(ranks.bytes(), {"tensor 't' has 5 dimensions", "1 to 4"});
  std::string huge_rank = GgufWriter().claim_tensors(1).bytes() + GgufWriter::raw_string("t") + GgufWriter::raw(~0u);
  huge_rank += std::string(64, '\0');
  expect_refusal(huge_rank, {"tensor 't' has 4294967295 dimensions"});
  expect_refusal(GgufWriter().add_tensor_raw("t", {}, 0, 0).add_string("k", std::string(64, 'x')).bytes(),
                 {"tensor 't' has 0 dimensions"});
}

TEST(Gguf, EveryEightBytesMadeHugeNeverCosts) {
  const std::string whole = small_file().bytes();
  for (std::size_t at = 0; at + 8 <= whole.size(); ++at) {
    for (const std::uint64_t value : {~0ull, 1ull << 63, 1ull << 61, 1ull << 40, 1ull << 32}) {
      std::string bytes = whole;
      bytes.replace(at, 8, GgufWriter::raw(value));
      refusal(bytes);
    }
  }
}

TEST(Gguf, TensorsAreCheckedBeforeUse) {
  const auto with = [](const std::vector<std::uint64_t>& dims, std::uint32_t type, std::uint64_t offset) {
    return GgufWriter()
        .add_string("pad", std::string(100, 'p'))
        .add_tensor("real", DType::f32, {32}, std::string(128, 'r'))
        .add_tensor_raw("t", dims, type, offset)
        .bytes();
  };
  expect_refusal(with({32}, 999, 0), {"tensor 't' has type 999"});
  expect_refusal(with({32}, 4, 0), {"tensor 't' has type 4"});
  expect_refusal(with({0}, 0, 0), {"tensor 't' has dimension 0 of length 0"});
  expect_refusal(with({1ull << 32, 1ull << 32}, 0, 0), {"tensor 't' has more than 2^63 elements"});
  expect_refusal(with({1ull << 62}, 0, 0), {"tensor 't' needs 4611686018427387904 blocks"});
  expect_refusal(with({33}, 3, 0), {"tensor 't' has rows of 33 elements, q4_1 needs a multiple of 32"});
  expect_refusal(with({32}, 0, 8), {"tensor 't' starts at offset 8, needed a multiple of 32"});
  expect_refusal(with({32}, 0, 1ull << 62), {"tensor 't' starts at offset 4611686018427387904"});
  expect_refusal(with({32}, 0, 64), {"tensor 't' needs 128 bytes"});
  expect_refusal(with({8}, 0, 96), {"'real' and 't' share bytes"});
  expect_refusal(with({8}, 0, 0), {"share bytes"});
}

TEST(Gguf, NamesStandOnce) {
  expect_refusal(GgufWriter().add_u32("k", 1).add_u32("k", 2).bytes(), {"key 'k' stands twice"});
  GgufWriter writer;
  writer.add_tensor("t", DType::f32, {1}, "abcd").add_tensor("t", DType::f32, {1}, "abcd");
  expect_refusal(writer.bytes(), {"tensor 't' stands twice"});
  expect_refusal(GgufWriter().add_u32("", 1).bytes(), {"metadata entry 0 has 0 bytes"});
  expect_refusal(GgufWriter().add_u32(std::string(65536, 'k'), 1).bytes(), {"has 65536 bytes"});
  const std::string message = refusal(GgufWriter().add_raw("\x1b[31m" + std::string(300, 'k'), 77, "").bytes());
  EXPECT_EQ(message.find('\x1b'), std::string::npos);
  EXPECT_LT(message.size(), 200u);
}

TEST(Gguf, HeaderMustFit) {
  expect_refusal("", {"the header needs 4 bytes at offset 0, the file has 0 bytes"});
  expect_refusal("GGML" + std::string(60, '\0'), {"is not a GGUF file"});
  expect_refusal(GgufWriter(1).bytes(), {"GGUF version 1"});
  expect_refusal(GgufWriter(4).bytes(), {"GGUF version 4"});
  expect_refusal(GgufWriter(0x03000000).bytes(), {"big-endian"});
  expect_refusal(GgufWriter().add_raw("k", 13, "xxxxxxxx").bytes(), {"key 'k' has unknown value type 13"});
}

TEST(Gguf, Alignment) {
  for (const std::uint32_t value : {0u, 3u, 4u, 24u, 1u << 31}) {
    expect_refusal(GgufWriter().add_u32("general.alignment", value).bytes(),
                   {"general.alignment' is " + std::to_string(value), "needed a power of two"});
  }
  expect_refusal(GgufWriter().add_scalar<std::int32_t>("general.alignment", 5, 32).bytes(),
                 {"general.alignment' has type i32, needed u32"});
  GgufWriter writer;
  writer.alignment(4096).add_u32("general.alignment", 4096);
  writer.add_tensor("a", DType::f32, {1}, "abcd").add_tensor("b", DType::f32, {1}, "efgh");
  const AlignedBytes bytes(writer.bytes());
  const ModelFile file = ModelFile::from_memory(bytes.span());
  EXPECT_EQ(file.data(file.tensor("b"))[0], std::byte{'e'});
}

TEST(Gguf, WhatCannotBeOpened) {
  EXPECT_THROW(ModelFile::open("/nonexistent/model.gguf"), SystemFailure);
  EXPECT_THROW(ModelFile::open("/tmp"), SystemFailure);
  const std::string pipe = "/tmp/gguf_test_pipe_" + std::to_string(::getpid());
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THROW(ModelFile::open(pipe), SystemFailure);  // without waiting for a writer
  std::remove(pipe.c_str());
  const TemporaryFile empty("");
  EXPECT_THROW(ModelFile::open(empty.path()), InvalidFile);
  const AlignedBytes bytes(small_file().bytes());
  EXPECT_THROW(ModelFile::from_memory(bytes.span().subspan(1)), InvalidArgument);
}

TEST(Gguf, ReadCopiesWithoutMapping) {
  GgufWriter writer;
  writer.add_tensor("t", DType::s8, {64}, std::string(32, 'a') + std::string(32, 'b'));
  const TemporaryFile on_disk(writer.bytes());
  const AlignedBytes in_memory(writer.bytes());
  const auto check = [](const ModelFile& file) {
    const ModelTensor& tensor = file.tensor("t");
    std::byte out[4];
    file.read(tensor, 30, out);
    EXPECT_EQ(std::string(reinterpret_cast<const char*>(out), 4), "aabb");
    file.read(tensor, 60, out);
    EXPECT_THROW(file.read(tensor, 61, out), InvalidArgument);
    EXPECT_THROW(file.read(tensor, std::size_t(-1), out), InvalidArgument);
  };
  check(ModelFile::from_memory(in_memory.span()));
  const ModelFile file = ModelFile::open(on_disk.path());
  check(file);
  ASSERT_EQ(::truncate(on_disk.path().c_str(), off_t(file.tensor("t").offset)), 0);
  std::byte out[4];
  EXPECT_THROW(file.read(file.tensor("t"), 0, out), SystemFailure);
}

TEST(Gguf, MovesKeepViews) {
  const TemporaryFile on_disk(small_file().bytes());
  ModelFile first = ModelFile::open(on_disk.path());
  const std::string_view name = first.metadata().require<std::string_view>("general.architecture");
  ModelFile second = std::move(first);
  EXPECT_EQ(name, "llama");
  EXPECT_EQ(second.tensor("norm").bytes, 16u);
  second = ModelFile::open(on_disk.path());
  EXPECT_EQ(second.tensors().size(), 2u);
}

}  // namespace
}  // namespace ops_transformer::llm
