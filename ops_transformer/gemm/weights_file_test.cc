// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "ops_transformer/base/error.h"
#include "ops_transformer/gemm/packed_weights.h"
#include "ops_transformer/gemm/weight_format.h"
#include "tests/support/random.h"

namespace ops_transformer {
namespace {

namespace fs = std::filesystem;

class WeightsFile : public testing::Test {
 protected:
  WeightsFile() { fs::create_directories(folder_); }
  ~WeightsFile() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  static std::vector<char> read(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  std::string write(const std::vector<char>& bytes) const {
    std::ofstream(path("changed"), std::ios::binary).write(bytes.data(), std::streamsize(bytes.size()));
    return path("changed");
  }
  static std::string refusal(const std::string& path) {
    try {
      PackedWeights::load(path);
    } catch (const InvalidFile& error) {
      return error.what();
    }
    return "";
  }
  PackedWeights weights(DType dtype = DType::f32, std::int64_t outputs = 37, std::int64_t inputs = 512) {
    const DTypeInfo& info = dtype_info(dtype);
    source_.resize(std::size_t(outputs * inputs) / info.block_len * info.block_bytes);
    for (std::byte& b : source_) b = std::byte(random_.integer(0, 255));
    return PackedWeights::pack(context_, ConstTensorView(source_.data(), dtype, {outputs, inputs}));
  }

  fs::path folder_ = fs::temp_directory_path() / ("weights_file_test_" + std::to_string(getpid()));
  Context context_{{.num_threads = 2}};
  test::Random random_{77};
  std::vector<std::byte> source_;
};

TEST_F(WeightsFile, EveryFormatComesBackBitForBit) {
  for (const WeightFormat* format : weight_formats()) {
    const PackedWeights saved = weights(format->dtype);
    saved.save(path("w"));
    const PackedWeights loaded = PackedWeights::load(path("w"));
    EXPECT_EQ(loaded.dtype(), saved.dtype());
    EXPECT_EQ(loaded.num_outputs(), 37);
    EXPECT_EQ(loaded.num_inputs(), 512);
    EXPECT_EQ(loaded.num_gated_outputs(), 0);
    ASSERT_EQ(loaded.bytes(), saved.bytes());
    EXPECT_EQ(std::memcmp(loaded.data(), saved.data(), saved.bytes()), 0) << dtype_name(format->dtype);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(loaded.data()) % kAlignment, 0u);
  }
  std::vector<std::string> files;
  for (const auto& entry : fs::directory_iterator(folder_)) files.push_back(entry.path().filename().string());
  EXPECT_EQ(files, std::vector<std::string>{"w"});  // no part is left
}

TEST_F(WeightsFile, GatedAndEmptyWeights) {
  std::vector<float> w(20 * 8, 0.5f);
  const ConstTensorView view(w.data(), DType::f32, {20, 8});
  PackedWeights::pack_gate_up(context_, view, view).save(path("gated"));
  const PackedWeights gated = PackedWeights::load(path("gated"));
  EXPECT_EQ(gated.num_gated_outputs(), 20);
  EXPECT_EQ(gated.num_outputs(), 64);
  PackedWeights::pack(context_, ConstTensorView(nullptr, DType::bf16, {0, 8})).save(path("empty"));
  EXPECT_EQ(PackedWeights::load(path("empty")).bytes(), 0u);
}

TEST_F(WeightsFile, IntegersKeepTheirScaling) {
  const std::vector<std::byte> codes(20 * 128, std::byte{0x37});
  const std::vector<BFloat16> scales(20 * 4, to_bfloat16(0.5f));
  const std::vector<std::int8_t> zeros(20 * 4, 3);
  for (bool with_zeros : {false, true}) {
    IntegerWeightOptions options{.scales = ConstTensorView(scales.data(), DType::bf16, {20, 4}), .group_len = 64};
    if (with_zeros) options.zeros = ConstTensorView(zeros.data(), DType::s8, {20, 4});
    const auto saved =
        PackedWeights::pack_integers(context_, ConstTensorView(codes.data(), DType::s4, {20, 256}), options);
    saved.save(path("w"));
    const PackedWeights loaded = PackedWeights::load(path("w"));
    EXPECT_EQ(loaded.scaling(), saved.scaling());
    ASSERT_EQ(loaded.bytes(), saved.bytes());
    EXPECT_EQ(std::memcmp(loaded.data(), saved.data(), saved.bytes()), 0);
  }
}

TEST_F(WeightsFile, ADamagedFileIsRefused) {
  weights(DType::q4_1).save(path("w"));
  const std::vector<char> whole = read(path("w"));
  EXPECT_EQ(refusal(write(whole)), "");
  for (std::size_t size : {std::size_t{0}, std::size_t{8}, std::size_t{127}, std::size_t{128}, whole.size() - 1}) {
    EXPECT_NE(refusal(write({whole.begin(), whole.begin() + std::ptrdiff_t(size)})), "") << size;
  }
  std::vector<char> longer = whole;
  longer.push_back(0);
  EXPECT_NE(refusal(write(longer)), "");
  // Any flipped bit, in the header or behind it.
  for (std::size_t at = 0; at < whole.size(); at += at < 72 ? 1 : 997) {
    std::vector<char> changed = whole;
    changed[at] = char(changed[at] ^ 0x10);
    EXPECT_NE(refusal(write(changed)), "") << "byte " << at;
  }
  EXPECT_NE(refusal(write(std::vector<char>(4096, 'x'))).find("holds no packed weights"), std::string::npos);
}

// Sizes that would reserve memory the file can't fill, or wrap.
TEST_F(WeightsFile, SizesAreCheckedBeforeTheySizeAnything) {
  weights().save(path("w"));
  const std::vector<char> whole = read(path("w"));
  constexpr std::size_t kOutputs = 32, kInputs = 40, kGated = 48, kBytes = 56;
  constexpr std::int64_t kBig = std::int64_t{1} << 40;
  for (const auto& [outputs, inputs, gated, bytes] :
       std::vector<std::array<std::int64_t, 4>>{{kBig, 1, 0, kBig * 4},
                                                {kBig, kBig, 0, 0},
                                                {-1, 512, 0, -1},
                                                {37, -512, 0, 98304},
                                                {37, 512, 37, 98304},
                                                {37, 512, -1, 98304},
                                                {37, 512, std::int64_t{1} << 62, 98304},
                                                {std::int64_t{1} << 62, 4, 0, 1 << 20},
                                                {48, 512, 0, 98304 + 64},
                                                {37, 513, 0, 98304}}) {
    std::vector<char> changed = whole;
    std::memcpy(changed.data() + kOutputs, &outputs, 8);
    std::memcpy(changed.data() + kInputs, &inputs, 8);
    std::memcpy(changed.data() + kGated, &gated, 8);
    std::memcpy(changed.data() + kBytes, &bytes, 8);
    EXPECT_NE(refusal(write(changed)), "") << outputs << " " << inputs << " " << gated << " " << bytes;
  }
}

TEST_F(WeightsFile, WhatTheSystemRefusesIsASystemFailure) {
  EXPECT_THROW(PackedWeights::load(path("missing")), SystemFailure);
  EXPECT_THROW(weights().save(path("no/such/folder")), SystemFailure);
  EXPECT_THROW(PackedWeights::load(folder_.string()), InvalidFile);
  ASSERT_EQ(mkfifo(path("pipe").c_str(), 0600), 0);
  EXPECT_THROW(PackedWeights::load(path("pipe")), InvalidFile);
}

}  // namespace
}  // namespace ops_transformer
