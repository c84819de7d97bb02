// SPDX-License-Identifier: Apache-2.0
#include "llm/formats/convert.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

#include "llm/formats/output_file.h"
#include "llm/formats/quantise.h"
#include "llm/tokenizer/utf8.h"
#include "ops_transformer/base/error.h"
#include "ops_transformer/base/memory.h"
#include "ops_transformer/gemm/dequantise.h"

namespace ops_transformer::llm {
namespace {

constexpr std::size_t kChunkElements = 1 << 18;  // converted at once: 1 MB of f32
constexpr std::uint32_t kQuantizationVersion = 2;

// Keys that this file has its own values for.
constexpr std::string_view kAlignmentKey = "general.alignment", kFileTypeKey = "general.file_type",
                           kVersionKey = "general.quantization_version";

template <class T>
void append(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void append_text(std::string& out, std::string_view text) { append(out, std::uint64_t{text.size()}), out += text; }

void append_entry(std::string& out, const GgufEntry& entry) {
  append_text(out, entry.key);
  append(out, std::uint32_t(entry.type));
  if (entry.type == GgufType::array)
    append(out, std::uint32_t(entry.element_type)), append(out, std::uint64_t{entry.length});
  out.append(reinterpret_cast<const char*>(entry.bytes.data()), entry.bytes.size());
}

/// llama.cpp's number for "mostly this type"; none where it has none for what convert makes.
std::optional<std::uint32_t> file_type(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return 0;
    case DType::f16:
      return 1;
    case DType::q4_0:
      return 2;
    case DType::q4_1:
      return 3;
    case DType::q8_0:
      return 7;
    case DType::bf16:
      return 32;
    default:
      return std::nullopt;
  }
}

std::size_t bytes_of(DType dtype, std::size_t num_elements) {
  return num_elements / dtype_info(dtype).block_len * dtype_info(dtype).block_bytes;
}

class Converter {
 public:
  Converter(const ModelFile& model, const ConvertOptions& options) : model_(model), options_(options) {
    if (options.dtype && !can_quantise(*options.dtype)) {
      throw InvalidArgument(fmt::format("dtype: {} can't be written; f32, f16, bf16, q8_0, q4_0 and q4_1 can",
                                        dtype_name(*options.dtype)));
    }
    for (const ModelTensor& tensor : model.tensors()) types_.push_back(choose(tensor));
  }

  ConvertResult write(const std::string& path) {
    const std::string header = make_header();
    OutputFile file(path, header.size() + data_bytes_, options_.overwrite);
    file.write(std::as_bytes(std::span(header)));
    for (std::size_t i = 0; i < types_.size(); ++i) {
      const ModelTensor& tensor = model_.tensors()[i];
      write_tensor(file, tensor, types_[i], header.size() + data_bytes_);
      model_.drop_pages(tensor);
      pad(file);
    }
    file.finish();
    result_.bytes = file.written();
    result_.num_tensors = types_.size();
    return result_;
  }

 private:
  DType choose(const ModelTensor& tensor) {
    if (!options_.dtype || tensor.rank < 2 || tensor.dtype == *options_.dtype) return tensor.dtype;
    if (is_block_quantised(tensor.dtype) && is_block_quantised(*options_.dtype)) {
      throw InvalidArgument(
          fmt::format("dtype: tensor {} is {} already; quantising it again to {} would add to its error",
                      shown(tensor.name), dtype_name(tensor.dtype), dtype_name(*options_.dtype)));
    }
    if (tensor.cols() % dtype_info(*options_.dtype).block_len == 0) return *options_.dtype;
    ++result_.num_fallbacks;
    return DType::f16;
  }

  std::string make_header() {
    std::string out, entries;
    std::uint64_t num_entries = 0;
    for (const GgufEntry& entry : model_.metadata().entries()) {
      if (entry.key == kAlignmentKey || entry.key == kVersionKey) continue;
      if (entry.key == kFileTypeKey && options_.dtype) continue;
      append_entry(entries, entry);
      ++num_entries;
    }
    GgufMetadataBuilder added;
    added.add_u32(std::string(kVersionKey), kQuantizationVersion);
    const auto type = file_type(options_.dtype.value_or(most_used()));
    if (type && (options_.dtype || !model_.metadata().find(kFileTypeKey)))
      added.add_u32(std::string(kFileTypeKey), *type);
    const GgufMetadata own = added.build();
    for (const GgufEntry& entry : own.entries()) append_entry(entries, entry), ++num_entries;
    append(out, kGgufMagic);
    append(out, std::uint32_t{3});
    append(out, std::uint64_t{types_.size()});
    append(out, num_entries);
    out += entries;
    for (std::size_t i = 0; i < types_.size(); ++i) {
      const ModelTensor& tensor = model_.tensors()[i];
      append_text(out, tensor.name);
      append(out, std::uint32_t(tensor.rank));
      for (std::size_t d = tensor.rank; d-- > 0;) append(out, std::uint64_t{tensor.dims[d]});
      append(out, std::uint32_t(dtype_info(types_[i]).ggml_type));
      append(out, std::uint64_t{data_bytes_});
      data_bytes_ += align_up(bytes_of(types_[i], tensor.num_elements), kGgufAlignment);
    }
    out.resize(align_up(out.size(), kGgufAlignment));
    return out;
  }

  DType most_used() const {
    std::size_t bytes[kNumDTypes] = {};
    for (std::size_t i = 0; i < types_.size(); ++i) bytes[std::size_t(types_[i])] += model_.tensors()[i].bytes;
    return DType(std::max_element(std::begin(bytes), std::end(bytes)) - std::begin(bytes));
  }

  static void pad(OutputFile& file) {
    constexpr std::byte kZeros[kGgufAlignment] = {};
    file.write(std::span(kZeros).first(align_up(file.written(), kGgufAlignment) - file.written()));
  }

  void write_tensor(OutputFile& file, const ModelTensor& tensor, DType type, std::size_t all) {
    const std::span<const std::byte> data = model_.data(tensor);
    const std::size_t chunk = std::max<std::size_t>(1, kChunkElements / tensor.cols()) * tensor.cols();
    for (std::size_t done = 0; done < tensor.num_elements; done += chunk) {
      const std::size_t count = std::min(chunk, tensor.num_elements - done);
      const auto in = data.subspan(bytes_of(tensor.dtype, done), bytes_of(tensor.dtype, count));
      file.write(type == tensor.dtype ? in : convert(tensor, type, in, count));
      if (options_.progress) options_.progress(file.written(), all);
    }
  }

  std::span<const std::byte> convert(const ModelTensor& tensor, DType type, std::span<const std::byte> in,
                                     std::size_t count) {
    floats_.resize(count);
    out_.resize(bytes_of(type, count));
    dequantise_rows(tensor.dtype, in.data(), std::int64_t(count), floats_.data());
    if (const auto value = quantise_row(type, floats_, out_)) {
      throw InvalidFile(fmt::format("{}: tensor {} holds {}, which {} can't", model_.path(), shown(tensor.name), *value,
                                    dtype_name(type)));
    }
    return out_;
  }

  const ModelFile& model_;
  const ConvertOptions& options_;
  std::vector<DType> types_;  // of each tensor, as written
  std::size_t data_bytes_ = 0;
  ConvertResult result_;
  std::vector<float> floats_;
  std::vector<std::byte> out_;
};

}  // namespace

ConvertResult convert_to_gguf(const ModelFile& model, const std::string& output, const ConvertOptions& options) {
  return Converter(model, options).write(output);
}

}  // namespace ops_transformer::llm
