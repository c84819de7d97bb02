// SPDX-License-Identifier: Apache-2.0
#include "llm/weight_loader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "llm/tokenizer/utf8.h"
#include "ops_transformer/gemm/dequantise.h"
#include "ops_transformer/gemm/weight_format.h"

namespace ops_transformer::llm {
namespace {

// What every tensor that may be packed as a matrix would take.
std::size_t upper_bound_bytes(const ModelFile& file) {
  std::size_t bytes = 0;
  for (const ModelTensor& tensor : file.tensors()) {
    if (tensor.rank <= 2 && find_weight_format(tensor.dtype)) {
      bytes +=
          align_up(PackedWeights::packed_bytes(tensor.dtype, std::int64_t(tensor.rows()), std::int64_t(tensor.cols())));
    }
  }
  return bytes;
}

}  // namespace

void StackedLinear::run(Context& context, const ConstTensorView& x, const TensorView& out,
                        const LinearOptions& options) const {
  std::int64_t first = 0;
  for (const PackedWeights& weights : groups_) {
    const std::int64_t size = weights.num_outputs();
    const TensorView part(out.as<float>() + first, DType::f32, {out.size(0), size}, {out.stride(0), 1});
    LinearOptions part_options = options;
    if (!bias_.empty()) part_options.bias = ConstTensorView(bias_.data() + first, DType::f32, {size});
    if (options.residual) {
      part_options.residual = ConstTensorView(options.residual->as<float>() + first, DType::f32, {out.size(0), size},
                                              {options.residual->stride(0), 1});
    }
    linear(context, x, weights, part, part_options);
    first += size;
  }
}

std::size_t StackedLinear::bytes() const {
  std::size_t bytes = 0;
  for (const PackedWeights& weights : groups_) bytes += weights.bytes();
  return bytes;
}

WeightLoader::WeightLoader(Context& context, const ModelFile& file, const LoadOptions& options)
    : context_(context),
      file_(file),
      options_(options),
      memory_(upper_bound_bytes(file)),
      used_(file.tensors().size(), false) {}

const ModelTensor& WeightLoader::tensor(const std::string& name, std::int64_t rows, std::int64_t cols) {
  const ModelTensor& tensor = file_.tensor(name);
  if (tensor.rank > 2) {
    throw InvalidFile(fmt::format("tensor {} has {} dimensions, must have at most 2", name, tensor.rank));
  }
  if (std::int64_t(tensor.rows()) != rows || std::int64_t(tensor.cols()) != cols) {
    throw InvalidFile(
        fmt::format("tensor {} is [{}, {}], must be [{}, {}]", name, tensor.rows(), tensor.cols(), rows, cols));
  }
  used_[file_.index_of(tensor)] = true;
  return tensor;
}

const ModelTensor& WeightLoader::matrix(const std::string& name, std::int64_t rows, std::int64_t cols) {
  const ModelTensor& found = tensor(name, rows, cols);
  if (!find_weight_format(found.dtype)) {
    throw InvalidFile(fmt::format("tensor {} is {}, which matrices can't be", name, dtype_name(found.dtype)));
  }
  return found;
}

Buffer WeightLoader::finish() {
  for (std::size_t i = 0; i < used_.size(); ++i) {
    if (!used_[i])
      throw InvalidFile(fmt::format("tensor {} has no place in this model", shown(file_.tensors()[i].name)));
  }
  return std::move(memory_);
}

ConstTensorView WeightLoader::view(const ModelTensor& tensor) const {
  return {file_.data(tensor).data(), tensor.dtype, {std::int64_t(tensor.rows()), std::int64_t(tensor.cols())}};
}

std::span<std::byte> WeightLoader::take(DType dtype, std::int64_t rows, std::int64_t cols) {
  const std::size_t bytes = PackedWeights::packed_bytes(dtype, rows, cols);
  const std::span<std::byte> memory(memory_.data() + taken_, bytes);
  taken_ += align_up(bytes);
  return memory;
}

void WeightLoader::finished(const ModelTensor& tensor) {
  file_.drop_pages(tensor);
  bytes_done_ += tensor.bytes;
  if (options_.progress) options_.progress(bytes_done_, file_.size());
}

StackedLinear WeightLoader::linear(const std::vector<NamedRows>& parts, std::int64_t cols) {
  StackedLinear stacked;
  bool any_bias = false;
  for (std::size_t begin = 0; begin < parts.size();) {
    std::vector<const ModelTensor*> tensors;
    std::vector<ConstTensorView> views;
    std::int64_t rows = 0;
    // A part that ends inside a tile of 16 outputs ends its matmul.
    std::size_t end = begin;
    for (; end < parts.size() && (end == begin || rows % 16 == 0); ++end) {
      const ModelTensor& next = matrix(parts[end].tensor + ".weight", parts[end].rows, cols);
      if (!tensors.empty() && next.dtype != tensors.front()->dtype) break;
      tensors.push_back(&next);
      views.push_back(view(next));
      rows += parts[end].rows;
    }
    stacked.groups_.push_back(PackedWeights::pack(context_, views, take(tensors.front()->dtype, rows, cols)));
    for (const ModelTensor* done : tensors) finished(*done);
    begin = end;
  }
  for (const NamedRows& part : parts) any_bias |= has(part.tensor + ".bias");
  if (any_bias) {
    for (const NamedRows& part : parts) {
      if (has(part.tensor + ".bias")) {
        const std::vector<float> bias = vector(part.tensor + ".bias", part.rows);
        stacked.bias_.insert(stacked.bias_.end(), bias.begin(), bias.end());
      } else {
        stacked.bias_.resize(stacked.bias_.size() + std::size_t(part.rows));
      }
    }
  }
  return stacked;
}

PackedWeights WeightLoader::gate_up(const std::string& gate, const std::string& up, std::int64_t rows,
                                    std::int64_t cols) {
  const ModelTensor &gate_tensor = matrix(gate + ".weight", rows, cols),
                    &up_tensor = matrix(up + ".weight", rows, cols);
  if (gate_tensor.dtype != up_tensor.dtype) {
    throw InvalidFile(fmt::format("tensors {}.weight ({}) and {}.weight ({}) must have one type", gate,
                                  dtype_name(gate_tensor.dtype), up, dtype_name(up_tensor.dtype)));
  }
  PackedWeights packed = PackedWeights::pack_gate_up(
      context_, view(gate_tensor), view(up_tensor), take(gate_tensor.dtype, 2 * align_up(std::size_t(rows), 16), cols));
  finished(gate_tensor);
  finished(up_tensor);
  return packed;
}

std::vector<float> WeightLoader::vector(const std::string& name, std::int64_t size) {
  const ModelTensor& t = tensor(name, 1, size);
  std::vector<float> values(std::size_t(size), 0.0f);
  if (!is_float(t.dtype)) {
    throw InvalidFile(fmt::format("tensor {} is {}, must be f32, f16 or bf16", name, dtype_name(t.dtype)));
  }
  dequantise_rows(t.dtype, file_.data(t).data(), size, values.data());
  for (float value : values) {
    if (!std::isfinite(value)) throw InvalidFile(fmt::format("tensor {} holds {}", name, value));
  }
  return values;
}

namespace {

RopeTable table_from_file(const RopeOptions& options) {
  try {
    return RopeTable(options);
  } catch (const InvalidArgument& error) {
    throw InvalidFile(error.what());  // every one of them came from the file
  }
}

}  // namespace

RopeTable WeightLoader::rope_table(const ModelConfig& config) {
  std::vector<float> factors;
  if (has("rope_freqs.weight")) factors = vector("rope_freqs.weight", config.rotary_dim / 2);
  return table_from_file({.rotary_dim = config.rotary_dim,
                          .theta = config.rope_theta,
                          .style = config.rope_style,
                          .position_scale = config.position_scale,
                          .scaling = config.rope_scaling,
                          .frequency_factors = factors});
}

RopeTable WeightLoader::local_rope_table(const ModelConfig& config) {
  return table_from_file(
      {.rotary_dim = config.rotary_dim, .theta = *config.local_rope_theta, .style = config.rope_style});
}

}  // namespace ops_transformer::llm
