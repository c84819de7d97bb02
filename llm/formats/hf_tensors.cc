// SPDX-License-Identifier: Apache-2.0
#include "llm/formats/hf_tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>
#include <string_view>

#include "llm/tokenizer/utf8.h"
#include "ops_transformer/base/error.h"
#include "ops_transformer/gemm/dequantise.h"

namespace ops_transformer::llm {
namespace {

enum Where : unsigned { kLlama = 1, kQwen2 = 2, kQwen3 = 4, kGemma3 = 8, kNotGemma3 = 7, kAll = 15 };
enum class Change { none, q_rows, k_rows, norm };  // what GGUF stores otherwise

struct Name {
  std::string_view hf, gguf;  // with .weight or .bias behind
  unsigned where;
  Change change = Change::none;
};
constexpr Name kModelNames[] = {
    {"model.embed_tokens", "token_embd", kAll},
    {"model.norm", "output_norm", kAll, Change::norm},
    {"lm_head", "output", kAll},
};
// After "model.layers.<i>." and "blk.<i>.".
constexpr Name kLayerNames[] = {
    {"input_layernorm", "attn_norm", kAll, Change::norm},
    {"self_attn.q_proj", "attn_q", kAll, Change::q_rows},
    {"self_attn.k_proj", "attn_k", kAll, Change::k_rows},
    {"self_attn.v_proj", "attn_v", kAll},
    {"self_attn.q_norm", "attn_q_norm", kQwen3 | kGemma3, Change::norm},
    {"self_attn.k_norm", "attn_k_norm", kQwen3 | kGemma3, Change::norm},
    {"self_attn.o_proj", "attn_output", kAll},
    {"post_attention_layernorm", "ffn_norm", kNotGemma3, Change::norm},
    {"post_attention_layernorm", "post_attention_norm", kGemma3, Change::norm},
    {"pre_feedforward_layernorm", "ffn_norm", kGemma3, Change::norm},
    {"mlp.gate_proj", "ffn_gate", kAll},
    {"mlp.up_proj", "ffn_up", kAll},
    {"mlp.down_proj", "ffn_down", kAll},
    {"post_feedforward_layernorm", "post_ffw_norm", kGemma3, Change::norm},
};
constexpr std::string_view kLayerPrefix = "model.layers.";

unsigned where_of(const HfModel& model) {
  return model.architecture == "llama"   ? kLlama
         : model.architecture == "qwen2" ? kQwen2
         : model.architecture == "qwen3" ? kQwen3
                                         : kGemma3;
}

struct Found {
  std::string gguf;
  Change change;
};

template <std::size_t n>
const Name* find_name(const Name (&names)[n], std::string_view hf, unsigned where) {
  const auto at = std::ranges::find_if(names, [&](const Name& name) { return name.hf == hf && name.where & where; });
  return at == std::end(names) ? nullptr : at;
}

/// Nothing where the model has no such tensor.
std::optional<Found> translate(std::string_view name, const HfModel& model) {
  const std::size_t dot = name.rfind('.');
  if (dot == name.npos || (name.substr(dot) != ".weight" && name.substr(dot) != ".bias")) return std::nullopt;
  std::string_view stem = name.substr(0, dot);
  std::string prefix;
  const Name* found = nullptr;
  if (stem.starts_with(kLayerPrefix)) {
    stem.remove_prefix(kLayerPrefix.size());
    std::int64_t layer = -1;
    const auto [end, error] = std::from_chars(stem.data(), stem.data() + stem.size(), layer);
    const std::string number = std::to_string(layer) + ".";
    if (error != std::errc() || layer < 0 || layer >= model.num_layers || !stem.starts_with(number))
      return std::nullopt;
    stem.remove_prefix(number.size());
    prefix = "blk." + number;
    found = find_name(kLayerNames, stem, where_of(model));
  } else {
    found = find_name(kModelNames, stem, where_of(model));
  }
  if (!found) return std::nullopt;
  return Found{fmt::format("{}{}{}", prefix, found->gguf, name.substr(dot)), found->change};
}

/// Buffers that old versions of Transformers stored beside the weights, and an output matrix that is the embedding.
bool is_left_out(std::string_view name, const HfModel& model) {
  return name.ends_with(".rotary_emb.inv_freq") || (model.tied && name == "lm_head.weight");
}

/// What is done to a tensor's rows on the way to GGUF.
struct Steps {
  DType dtype;           // as stored
  std::size_t num_rows;  // elements of a vector, rows of a matrix
  std::size_t row_len;
  std::size_t num_heads = 0;  // not 0: rows of each head from half-split to interleaved order
  bool widen = false;         // to f32
  float plus = 0;
};

void make(const Steps& steps, std::span<const std::byte> stored, std::span<std::byte> out) {
  const std::size_t row_bytes = steps.row_len * element_bytes(steps.dtype);
  const std::size_t head_rows = steps.num_heads > 0 ? steps.num_rows / steps.num_heads : steps.num_rows;
  const std::size_t out_bytes = steps.widen ? steps.row_len * sizeof(float) : row_bytes;
  for (std::size_t row = 0; row < steps.num_rows; ++row) {
    const std::size_t head = row / head_rows, i = row % head_rows;
    // Rows i and i + half of a head rotate together: in GGUF's llama they are neighbours.
    const std::size_t from = steps.num_heads > 0 ? head * head_rows + i % 2 * (head_rows / 2) + i / 2 : row;
    const std::byte* in = stored.data() + from * row_bytes;
    std::byte* to = out.data() + row * out_bytes;
    if (!steps.widen) {
      std::memcpy(to, in, row_bytes);
      continue;
    }
    const std::span values(reinterpret_cast<float*>(to), steps.row_len);
    dequantise_rows(steps.dtype, in, std::int64_t(steps.row_len), values.data());
    for (float& value : values) value += steps.plus;
  }
}

class Translator {
 public:
  Translator(const HfModel& model, ModelFileParts& parts) : model_(model), parts_(parts) {}

  void add(const HfTensor& tensor, const Found& found) {
    const SafetensorsTensor& stored = tensor.stored;
    if (!is_float(stored.dtype)) {
      fail(stored, fmt::format("is {}, must be F32, F16 or BF16", dtype_name(stored.dtype)));
    }
    if (stored.rank > 2) fail(stored, fmt::format("has {} dimensions, must have at most 2", stored.rank));
    const bool is_vector = stored.rank == 1;
    Steps steps{.dtype = stored.dtype,
                .num_rows = stored.dims[0],
                .row_len = is_vector ? 1 : stored.dims[1],
                .widen = is_vector && stored.dtype != DType::f32};
    if (found.change == Change::norm && model_.architecture == "gemma3") {
      steps.widen = true;
      steps.plus = 1;
    }
    if (model_.architecture == "llama" && (found.change == Change::q_rows || found.change == Change::k_rows)) {
      steps.num_heads = std::size_t(found.change == Change::q_rows ? model_.num_q_heads : model_.num_kv_heads);
      if (steps.num_rows != steps.num_heads * std::size_t(model_.head_dim)) {
        fail(stored, fmt::format("has {} rows, must have {} ({} heads of {})", steps.num_rows,
                                 steps.num_heads * std::size_t(model_.head_dim), steps.num_heads, model_.head_dim));
      }
    }
    ModelTensor out{};
    out.name = parts_.owned.emplace_back(found.gguf);
    out.dtype = steps.widen ? DType::f32 : stored.dtype;
    out.rank = stored.rank;
    out.dims = stored.dims;
    out.num_elements = stored.num_elements;
    out.bytes = stored.num_elements * element_bytes(out.dtype);
    out.file = tensor.file;
    out.offset = stored.offset;
    out.stored_bytes = stored.bytes;
    const bool as_stored = !steps.widen && steps.num_heads == 0 && stored.offset % element_bytes(stored.dtype) == 0;
    parts_.makers.push_back(
        as_stored ? TensorMaker()
                  : [steps](std::span<const std::byte> in, std::span<std::byte> to) { make(steps, in, to); });
    parts_.tensors.push_back(out);
  }

  void add_frequency_factors() {
    const std::vector<float>& factors = model_.frequency_factors;
    if (factors.empty()) return;
    const std::string& bytes =
        parts_.owned.emplace_back(reinterpret_cast<const char*>(factors.data()), factors.size() * sizeof(float));
    ModelTensor out{};
    out.name = "rope_freqs.weight";
    out.dtype = DType::f32;
    out.rank = 1;
    out.dims = {factors.size()};
    out.num_elements = factors.size();
    out.bytes = out.stored_bytes = bytes.size();
    out.file = parts_.files.size();
    parts_.files.push_back(MappedFile::borrow(std::as_bytes(std::span(bytes)), "rope_freqs"));
    parts_.makers.emplace_back();
    parts_.tensors.push_back(out);
  }

  [[noreturn]] void fail(const SafetensorsTensor& tensor, const std::string& what) const {
    throw InvalidFile(fmt::format("{}: tensor '{}' {}", parts_.path, shown(tensor.name), what));
  }

 private:
  const HfModel& model_;
  ModelFileParts& parts_;
};

/// Throws where a weight that every model of this kind has is not there.
void check_complete(const HfModel& model, const ModelFileParts& parts) {
  std::vector<std::string_view> names;
  for (const ModelTensor& tensor : parts.tensors) names.push_back(tensor.name);
  std::ranges::sort(names);
  const auto need = [&](const std::string& gguf, const std::string& hf) {
    if (!std::ranges::binary_search(names, std::string_view(gguf))) {
      throw InvalidFile(fmt::format("{}: tensor '{}' is missing", parts.path, hf));
    }
  };
  const unsigned where = where_of(model);
  for (const Name& name : kModelNames) {
    if (model.tied && name.hf == "lm_head") continue;
    need(fmt::format("{}.weight", name.gguf), fmt::format("{}.weight", name.hf));
  }
  for (std::int64_t i = 0; i < model.num_layers; ++i) {
    for (const Name& name : kLayerNames) {
      if (name.where & where) {
        need(fmt::format("blk.{}.{}.weight", i, name.gguf), fmt::format("{}{}.{}.weight", kLayerPrefix, i, name.hf));
      }
    }
  }
}

}  // namespace

void add_hf_tensors(const HfModel& model, std::vector<HfTensor> tensors, ModelFileParts& parts) {
  Translator translator(model, parts);
  for (const HfTensor& tensor : tensors) {
    if (is_left_out(tensor.stored.name, model)) continue;
    const std::optional<Found> found = translate(tensor.stored.name, model);
    if (!found) translator.fail(tensor.stored, fmt::format("has no place in a {} model", model.architecture));
    translator.add(tensor, *found);
  }
  translator.add_frequency_factors();
  check_complete(model, parts);
}

}  // namespace ops_transformer::llm
