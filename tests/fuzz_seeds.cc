// SPDX-License-Identifier: Apache-2.0
// Writes what the fuzzers start from: `fuzz_seeds DIR` makes DIR/gguf_fuzz, DIR/safetensors_fuzz and
// DIR/weights_file_fuzz with small files that use every part of the formats. The tokenizers' fuzzers start from random
// bytes: from nothing libFuzzer's first seconds go into inputs too short to make a vocabulary, and so many reach 88 %
// of the lines however slow the machine is. The sampler's finds its way from nothing.
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <string_view>

#include "tests/support/gguf_writer.h"
#include "tests/support/small_tokenizer.h"

namespace {

void write_safetensors(const std::filesystem::path& folder) {
  using ops_transformer::test::GgufWriter;
  std::filesystem::create_directories(folder);
  int count = 0;
  const auto write = [&](const std::string& bytes) {
    std::ofstream(folder / std::to_string(count++), std::ios::binary) << bytes;
  };
  for (
      const char* header :
      {R"({"__metadata__":{"a":"b"},"t":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]}})",
       R"({"t":{"dtype":"BF16","shape":[2],"data_offsets":[4,8]},"u":{"shape":[],"data_offsets":[0,4],"dtype":"I32"}})",
       R"({"t":{"dtype":"X9","shape":[-1,1.5,true,null],"data_offsets":[0,8,9]}})",
       R"({"t":{"dtype":"U8","shape":[8,0,4294967296,4294967296],"data_offsets":[0,8]},"t":[]})"}) {
    write(GgufWriter::raw(std::uint64_t{std::string_view(header).size()}) + header + "12345678");
  }
  const std::string sizes = R"("hidden_size":64,"intermediate_size":96,"num_hidden_layers":2,"num_attention_heads":4,)"
                            R"("vocab_size":300,"max_position_embeddings":512,)";
  for (
      const char* rest :
      {R"("architectures":["LlamaForCausalLM"],"rope_scaling":{"type":"llama3","factor":8,"low_freq_factor":1,)"
       R"("high_freq_factor":4,"original_max_position_embeddings":64})",
       R"("model_type":"mistral","sliding_window":9,"num_key_value_heads":2,"rms_norm_eps":1e-5,"hidden_act":"silu")",
       R"("model_type":"qwen2","use_sliding_window":false,"rope_scaling":{"type":"linear","factor":2.5})",
       R"("model_type":"qwen3","head_dim":32,"rope_parameters":{"rope_type":"yarn","factor":4,"rope_theta":1e4,)"
       R"("original_max_position_embeddings":64,"beta_fast":32,"attention_factor":1.5})",
       R"("model_type":"gemma3_text","sliding_window":7,"layer_types":["sliding_attention","full_attention"],)"
       R"("query_pre_attn_scalar":16,"rope_parameters":{"full_attention":{"rope_theta":5e5,"rope_type":"linear",)"
       R"("factor":4},"sliding_attention":{"rope_theta":1e4,"rope_type":"default"}},"tie_word_embeddings":true)",
       R"("model_type":"gemma3_text","sliding_window":7,"layer_types":["full_attention","sliding_attention"])",
       R"("model_type":"llama","rope_scaling":{"type":"dynamic"},"partial_rotary_factor":0.5,"quantization_config":{})",
       R"("model_type":"foo","use_bidirectional_attention":true,"a":[{"b":1},{"c":[["x"]]}],"n":-3,"s":"text","z":null)"}) {
    write("{" + sizes + rest + "}");
  }
}

// Their checksums are 0: the fuzzer puts in the right ones.
void write_weights(const std::filesystem::path& folder) {
  using ops_transformer::test::GgufWriter;
  std::filesystem::create_directories(folder);
  int count = 0;
  const auto name = [](std::string text) {
    text.resize(16);
    return text;
  };
  const auto write = [&](const char* dtype, std::int64_t num_outputs, std::int64_t num_inputs, std::int64_t num_gated,
                         std::int64_t bytes, const char* scales = "f32", std::int64_t group_len = 0,
                         std::uint32_t has_zeros = 0) {
    std::string file =
        "OTWEIGHT" + GgufWriter::raw(std::uint32_t{1}) + GgufWriter::raw(std::uint32_t{128}) + name(dtype);
    for (std::int64_t value : {num_outputs, num_inputs, num_gated, bytes, std::int64_t{0}})
      file += GgufWriter::raw(value);
    file += name(scales) + GgufWriter::raw(group_len) + GgufWriter::raw(has_zeros) + std::string(28, '\0');
    std::ofstream(folder / std::to_string(count++), std::ios::binary) << file << std::string(std::size_t(bytes), 'w');
  };
  write("f32", 3, 2, 0, 128);
  write("f32", 32, 1, 5, 128);  // of pack_gate_up
  write("bf16", 17, 3, 0, 256);
  write("f16", 0, 8, 0, 0);
  write("s8", 2, 32, 0, 576, "f16", 32, 1);
  write("s4", 16, 64, 0, 640, "bf16", 0, 1);
  write("u8", 1, 5, 0, 256);
  write("q8_0", 1, 32, 0, 576);
  write("q4_k", 1, 255, 0, 100);
  write("i32", 1, 1, 0, 64);
}

void write_random(const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  std::mt19937 random(1);
  for (int count = 0; count < 2000; ++count) {
    std::string bytes(50 + 2 * count / 5, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    std::ofstream(folder / std::to_string(count), std::ios::binary) << bytes;
  }
}

}  // namespace

int main(int argc, char** argv) {
  using ops_transformer::DType;
  using ops_transformer::test::GgufWriter;
  if (argc != 2) return 2;
  write_safetensors(std::filesystem::path(argv[1]) / "safetensors_fuzz");
  write_weights(std::filesystem::path(argv[1]) / "weights_file_fuzz");
  write_random(std::filesystem::path(argv[1]) / "tokenizer_fuzz");
  write_random(std::filesystem::path(argv[1]) / "tokenizer_json_fuzz");
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
