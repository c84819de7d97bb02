// SPDX-License-Identifier: Apache-2.0
#include "llm/formats/hf_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "llm/formats/mapped_file.h"
#include "llm/tokenizer/tokenizer_json.h"
#include "ops_transformer/base/error.h"

namespace ops_transformer::llm {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr std::size_t kMaxTokenizerBytes = std::size_t{256} << 20, kMaxConfigBytes = std::size_t{16} << 20;

std::string read_text(const fs::path& path, std::size_t max_bytes) {
  const MappedFile file = MappedFile::open(path);
  if (file.bytes().size() > max_bytes) {
    throw InvalidFile(fmt::format("{}: has {} bytes, the limit is {}", path.string(), file.bytes().size(), max_bytes));
  }
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

/// Ids that config.json (or generation_config.json) names as ends: one or a list.
std::vector<TokenId> end_ids(const JsonObject& config, std::int64_t vocab_size) {
  std::vector<TokenId> ids;
  const Json* value = config.find("eos_token_id");
  for (const Json& id : !value ? Json::array() : value->is_array() ? *value : Json::array({*value})) {
    if (!id.is_number_unsigned() || id.get<std::uint64_t>() >= std::uint64_t(vocab_size)) {
      config.refuse("eos_token_id", fmt::format("must be below the vocabulary's {}", vocab_size));
    }
    ids.push_back(id.get<TokenId>());
  }
  return ids;
}

}  // namespace

void add_hf_tokenizer(const fs::path& folder, const JsonObject& config, const HfModel& model,
                      GgufMetadataBuilder& metadata) {
  if (!fs::exists(folder / "tokenizer.json")) {
    throw InvalidFile(fmt::format("{}: has no tokenizer.json", folder.string()));
  }
  const std::string options = fs::exists(folder / "tokenizer_config.json")
                                  ? read_text(folder / "tokenizer_config.json", kMaxConfigBytes)
                                  : std::string();
  TokenizerData data = read_tokenizer_json(read_text(folder / "tokenizer.json", kMaxTokenizerBytes), options);
  if (data.tokens.size() > std::size_t(model.vocab_size)) {
    throw InvalidFile(fmt::format("tokenizer.json: has ids up to {}, the vocabulary has {} tokens",
                                  data.tokens.size() - 1, model.vocab_size));
  }
  data.pad_to(std::size_t(model.vocab_size));

  const auto bos = config.integer("bos_token_id", 0, model.vocab_size - 1);
  if (!data.bos && bos) data.bos = TokenId(*bos);
  std::vector<TokenId> ends = end_ids(config, model.vocab_size);
  if (const fs::path path = folder / "generation_config.json"; fs::exists(path)) {
    std::ranges::copy(end_ids(JsonObject::read(path, kMaxConfigBytes), model.vocab_size), std::back_inserter(ends));
  }
  if (data.eos) ends.insert(ends.begin(), *data.eos);
  std::vector<TokenId> distinct;
  for (const TokenId id : ends) {
    if (std::ranges::find(distinct, id) == distinct.end()) distinct.push_back(id);
  }
  std::optional<TokenId>* const named[] = {&data.eos, &data.eot, &data.eom};
  for (std::size_t i = 0; i < std::min(distinct.size(), std::size(named)); ++i) *named[i] = distinct[i];
  if (const fs::path path = folder / "chat_template.jinja"; fs::exists(path)) {
    data.chat_template = read_text(path, kMaxConfigBytes);
  }
  write_tokenizer_gguf(data, metadata);
}

}  // namespace ops_transformer::llm
