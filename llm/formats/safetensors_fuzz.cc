// SPDX-License-Identifier: Apache-2.0
// feeds: llm/formats/safetensors.cc llm/formats/json_file.cc llm/formats/hf_config.cc
// feeds: llm/formats/gguf_metadata_builder.cc
#include <string>

#include "llm/formats/hf_config.h"
#include "llm/formats/json_file.h"
#include "llm/formats/safetensors.h"
#include "ops_transformer/base/error.h"
#include "tests/support/fuzz.h"

namespace ops_transformer::llm {
namespace {

void try_tensors(std::string_view text) {
  const MappedFile file = MappedFile::borrow(std::as_bytes(std::span(text)), "memory");
  std::size_t bytes = 0;
  for (const SafetensorsTensor& tensor : read_safetensors(file)) {
    FUZZ_CHECK(tensor.rank >= 1 && tensor.rank <= 4 && tensor.num_elements >= 1);
    FUZZ_CHECK(tensor.bytes == tensor.num_elements * element_bytes(tensor.dtype));
    FUZZ_CHECK(tensor.offset + tensor.bytes <= text.size());
    bytes += tensor.bytes;
  }
  FUZZ_CHECK(bytes <= text.size());
}

void try_config(std::string_view text) {
  const JsonObject config = JsonObject::parse(text, "config.json");
  GgufMetadataBuilder builder;
  const HfModel model = read_hf_config(config, builder);
  const GgufMetadata metadata = builder.build();
  FUZZ_CHECK(metadata.require<std::string>("general.architecture") == model.architecture);
  FUZZ_CHECK(model.num_layers >= 1 && model.head_dim % 2 == 0);
  for (const GgufEntry& entry : metadata.entries()) FUZZ_CHECK(!gguf_value_text(entry).empty());
}

// Values of any kind, asked for as every kind.
void try_values(std::string_view text) {
  const JsonObject object = JsonObject::parse(text, "file");
  const auto attempt = [](auto&& get) {
    try {
      get();
    } catch (const InvalidFile&) {
    }
  };
  for (const auto& [key, value] : object.json().items()) {
    FUZZ_CHECK(object.has(key) == !value.is_null());
    FUZZ_CHECK(shown_json(value).size() < 200);
    attempt([&] { object.integer(key, -5, 1000); });
    attempt([&] { object.number(key); });
    attempt([&] { object.text(key); });
    attempt([&] { object.truth(key); });
    attempt([&] { object.object(key); });
    attempt([&] { object.texts(key); });
    attempt([&] { object.elements(key); });
  }
}

}  // namespace
}  // namespace ops_transformer::llm

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  using namespace ops_transformer::llm;
  for (const auto attempt : {try_tensors, try_config, try_values}) {
    if (attempt != try_tensors && !text.starts_with('{')) continue;
    try {
      attempt(text);
    } catch (const ops_transformer::InvalidFile&) {
    }
  }
  return 0;
}
