// SPDX-License-Identifier: Apache-2.0
#include "llm/formats/safetensors_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <utility>

#include "llm/formats/hf_config.h"
#include "llm/formats/hf_tensors.h"
#include "llm/formats/hf_tokenizer.h"
#include "llm/formats/json_file.h"
#include "llm/formats/safetensors.h"
#include "llm/tokenizer/utf8.h"
#include "ops_transformer/base/error.h"

namespace ops_transformer::llm {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kWeights = "model.safetensors", kExtension = ".safetensors";
constexpr std::string_view kIndex = "model.safetensors.index.json", kIndexExtension = ".safetensors.index.json";
constexpr std::size_t kMaxConfigBytes = std::size_t{4} << 20, kMaxIndexBytes = std::size_t{32} << 20;

/// Tensor names by shard, from the index. A shard lies in the folder itself.
std::map<std::string, std::vector<std::string>> read_index(const std::string& path) {
  const JsonObject index = JsonObject::read(path, kMaxIndexBytes);
  const auto weight_map = index.object("weight_map");
  if (!weight_map) index.refuse("weight_map", "is missing");
  std::map<std::string, std::vector<std::string>> shards;
  for (const auto& [tensor, value] : weight_map->json().items()) {
    const auto shard = weight_map->text(tensor);
    if (!shard) weight_map->refuse(tensor, "is null, needed a file's name");
    if (!shard->ends_with(kExtension) || shard->find('/') != shard->npos || shard->find('\0') != shard->npos) {
      weight_map->refuse(tensor,
                         fmt::format("is '{}', needed the name of a .safetensors file in this folder", shown(*shard)));
    }
    shards[*shard].push_back(tensor);
  }
  if (shards.empty()) index.refuse("weight_map", "is empty");
  return shards;
}

/// The shard's tensors must be those that the index says it holds.
void check_shard(const std::string& path, std::vector<std::string> expected,
                 const std::vector<SafetensorsTensor>& tensors) {
  std::ranges::sort(expected);
  std::vector<std::string> there;
  for (const SafetensorsTensor& tensor : tensors) there.push_back(tensor.name);
  std::ranges::sort(there);
  std::vector<std::string> other;
  std::ranges::set_difference(expected, there, std::back_inserter(other));
  if (!other.empty())
    throw InvalidFile(fmt::format("{}: tensor '{}' of the index is not there", path, shown(other[0])));
  std::ranges::set_difference(there, expected, std::back_inserter(other));
  if (!other.empty()) throw InvalidFile(fmt::format("{}: tensor '{}' is not in the index", path, shown(other[0])));
}

std::vector<HfTensor> read_weights(const fs::path& folder, ModelFileParts& parts) {
  std::map<std::string, std::vector<std::string>> shards;
  const bool sharded = !fs::exists(folder / kWeights) && fs::exists(folder / kIndex);
  if (sharded) {
    shards = read_index(folder / kIndex);
  } else {
    shards[std::string(kWeights)];
  }
  std::vector<HfTensor> tensors;
  for (auto& [name, expected] : shards) {
    const std::size_t file = parts.files.size();
    parts.files.push_back(MappedFile::open(folder / name));
    std::vector<SafetensorsTensor> found = read_safetensors(parts.files.back());
    if (sharded) check_shard(folder / name, std::move(expected), found);
    for (SafetensorsTensor& tensor : found) tensors.push_back({std::move(tensor), file});
  }
  return tensors;
}

/// Before the number of rows sizes anything.
void check_vocabulary(const JsonObject& config, const HfModel& model, const ModelFileParts& parts) {
  const auto embedding = std::ranges::find(parts.tensors, "token_embd.weight", &ModelTensor::name);
  if (std::int64_t(embedding->rows()) != model.vocab_size) {
    config.refuse("vocab_size",
                  fmt::format("is {}, but the embedding has {} rows", model.vocab_size, embedding->rows()));
  }
}

}  // namespace

bool is_safetensors_folder(const std::string& path) {
  std::error_code ignored;
  return path.ends_with(kExtension) || path.ends_with(kIndexExtension) || fs::is_directory(path, ignored);
}

ModelFileParts read_safetensors_folder(const std::string& path) {
  std::error_code ignored;
  fs::path folder = path;
  if (!fs::is_directory(folder, ignored)) folder = folder.has_parent_path() ? folder.parent_path() : fs::path(".");
  ModelFileParts parts;
  parts.path = path;
  const JsonObject config = JsonObject::read(folder / "config.json", kMaxConfigBytes);
  GgufMetadataBuilder metadata;
  const HfModel model = read_hf_config(config, metadata);
  metadata.add_string("general.name", fs::canonical(folder).filename().string());
  add_hf_tensors(model, read_weights(folder, parts), parts);
  check_vocabulary(config, model, parts);
  add_hf_tokenizer(folder, config, model, metadata);
  parts.metadata = metadata.build();
  parts.format = fmt::format("safetensors ({} {})", parts.files.size(), parts.files.size() == 1 ? "file" : "files");
  return parts;
}

}  // namespace ops_transformer::llm
