// SPDX-License-Identifier: Apache-2.0
// feeds: llm/formats/model_file.cc llm/formats/mapped_file.cc llm/formats/gguf_parser.cc llm/formats/gguf_metadata.cc
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "llm/formats/model_file.h"
#include "tests/support/fuzz.h"
#include "tests/support/gguf_writer.h"

namespace ops_transformer::llm {
namespace {

template <class T>
void read_as(const GgufMetadata& metadata, std::string_view key) {
  try {
    metadata.get<T>(key);
    metadata.get_or<T>(key, T{});
    metadata.require<T>(key);
  } catch (const InvalidFile&) {
  }
}

void read_everything(const ModelFile& file) {
  const GgufMetadata& metadata = file.metadata();
  for (const GgufEntry& entry : metadata.entries()) {
    FUZZ_CHECK(metadata.find(entry.key) == &entry);
    FUZZ_CHECK(gguf_value_text(entry).size() < 2000);
    read_as<bool>(metadata, entry.key);
    read_as<std::int32_t>(metadata, entry.key);
    read_as<std::uint64_t>(metadata, entry.key);
    read_as<float>(metadata, entry.key);
    read_as<std::string>(metadata, entry.key);
    read_as<std::vector<std::int32_t>>(metadata, entry.key);
    read_as<std::vector<bool>>(metadata, entry.key);
    read_as<std::vector<float>>(metadata, entry.key);
    read_as<std::vector<std::string_view>>(metadata, entry.key);
  }
  unsigned sum = 0;
  for (const ModelTensor& tensor : file.tensors()) {
    FUZZ_CHECK(&file.tensor(tensor.name) == &tensor);
    FUZZ_CHECK(tensor.rows() * tensor.cols() == tensor.num_elements);
    for (const std::byte b : file.data(tensor)) sum += static_cast<unsigned>(b);
    file.drop_pages(tensor);
  }
  FUZZ_CHECK(sum <= 255u * file.size());
  try {
    metadata.require<bool>("no such key");
    FUZZ_CHECK(false);
  } catch (const InvalidFile&) {
  }
  try {
    file.tensor("no such tensor");
    FUZZ_CHECK(false);
  } catch (const InvalidFile&) {
  }
}

void try_file(const std::function<ModelFile()>& open) {
  try {
    ModelFile file = open();
    const ModelFile moved = std::move(file);
    read_everything(moved);
  } catch (const InvalidFile&) {
  }
}

}  // namespace
}  // namespace ops_transformer::llm

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using ops_transformer::llm::ModelFile;
  const std::string text(reinterpret_cast<const char*>(data), size);
  const ops_transformer::test::AlignedBytes bytes(text);
  ops_transformer::llm::try_file([&] { return ModelFile::from_memory(bytes.span()); });
  static unsigned count = 0;
  if (count++ % 64 == 0) {  // a mapping costs a hundred times as much
    const ops_transformer::test::FuzzFile file(text);
    ops_transformer::llm::try_file([&] { return ModelFile::open(file.path()); });
  }
  return 0;
}
