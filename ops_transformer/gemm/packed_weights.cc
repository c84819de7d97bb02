// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/gemm/packed_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

#include "ops_transformer/base/validate.h"
#include "ops_transformer/gemm/weight_format.h"

namespace ops_transformer {
namespace {

constexpr const char* kOp = "PackedWeights::pack";
// Weights that one item of the parallel loop packs: enough to outweigh its start.
constexpr std::size_t kBytesPerItem = std::size_t{64} << 10;

std::int64_t num_tiles_of(std::int64_t num_outputs) { return (num_outputs + kTileOutputs - 1) / kTileOutputs; }

void check_part(const ConstTensorView& part, const std::string& name, const ConstTensorView& first) {
  check_rank(kOp, name, part, 2);
  check_rows(kOp, name, part);
  const WeightFormat* format = find_weight_format(part.dtype());
  if (!format) invalid(kOp, fmt::format("{} is {}, which can't be packed", name, dtype_name(part.dtype())));
  const auto block_len = std::int64_t(dtype_info(part.dtype()).block_len);
  if (part.size(1) % block_len != 0 || part.stride(0) % block_len != 0) {
    invalid(kOp, fmt::format("rows of {} must be multiples of {} elements, got length {} and stride {}", name,
                             block_len, part.size(1), part.stride(0)));
  }
  check_dtype(kOp, name, part, {first.dtype()});
  check_shape(kOp, name, part, {-1, first.size(1)});
}

void check_memory(std::span<std::byte> memory, std::size_t bytes) {
  if (memory.size() < bytes) invalid(kOp, fmt::format("memory has {} bytes, needs {}", memory.size(), bytes));
  if (reinterpret_cast<std::uintptr_t>(memory.data()) % kAlignment != 0)
    invalid(kOp, fmt::format("memory must be aligned to {} bytes", kAlignment));
}

const std::byte* row_of(const ConstTensorView& part, std::int64_t row) {
  const DTypeInfo& info = dtype_info(part.dtype());
  return part.as<std::byte>() + row * part.stride(0) / std::int64_t(info.block_len) * std::int64_t(info.block_bytes);
}

// rows_of(tile, rows) names the rows of a tile.
template <class RowsOf>
void pack_tiles(Context& context, const WeightFormat& format, std::int64_t num_tiles, std::int64_t num_inputs,
                std::byte* memory, const RowsOf& rows_of) {
  const std::size_t tile_bytes = format.tile_bytes(num_inputs);
  if (num_tiles == 0 || tile_bytes == 0) return;
  const auto tiles_per_item = std::int64_t(std::max<std::size_t>(1, kBytesPerItem / tile_bytes));
  CallScope call(context);
  call.parallel_for(std::size_t((num_tiles + tiles_per_item - 1) / tiles_per_item), [&](std::size_t item, int) {
    const std::int64_t first = std::int64_t(item) * tiles_per_item;
    for (std::int64_t tile = first; tile < std::min(num_tiles, first + tiles_per_item); ++tile) {
      std::array<const void*, kTileOutputs> rows{};
      rows_of(tile, rows);
      format.pack_tile(rows.data(), num_inputs, memory + std::size_t(tile) * tile_bytes);
    }
  });
}

}  // namespace

std::size_t PackedWeights::packed_bytes(DType dtype, std::int64_t num_outputs, std::int64_t num_inputs) {
  const WeightFormat* format = find_weight_format(dtype);
  if (!format) invalid(kOp, fmt::format("dtype is {}, which can't be packed", dtype_name(dtype)));
  if (num_outputs < 0 || num_inputs < 0)
    invalid(kOp, fmt::format("sizes are {} x {}, must be >= 0", num_outputs, num_inputs));
  return std::size_t(num_tiles_of(num_outputs)) * format->tile_bytes(num_inputs);
}

PackedWeights PackedWeights::pack(Context& context, std::span<const ConstTensorView> parts,
                                  std::span<std::byte> memory) {
  if (parts.empty()) invalid(kOp, "parts is empty, must hold at least one tensor");
  std::int64_t num_outputs = 0;
  std::vector<std::int64_t> first_tiles;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    check_part(parts[i], fmt::format("parts[{}]", i), parts[0]);
    if (num_outputs % kTileOutputs != 0) {
      invalid(kOp, fmt::format("parts[{}] has {} outputs, must be a multiple of {} as another part follows", i - 1,
                               parts[i - 1].size(0), kTileOutputs));
    }
    first_tiles.push_back(num_outputs / kTileOutputs);
    num_outputs += parts[i].size(0);
  }
  PackedWeights packed;
  packed.dtype_ = parts[0].dtype();
  packed.num_outputs_ = num_outputs;
  packed.num_inputs_ = parts[0].size(1);
  packed.bytes_ = packed_bytes(packed.dtype_, num_outputs, packed.num_inputs_);
  std::byte* const target = packed.take_memory(memory);
  const auto rows_of = [&](std::int64_t tile, std::array<const void*, kTileOutputs>& rows) {
    const auto i = std::size_t(std::ranges::upper_bound(first_tiles, tile) - first_tiles.begin()) - 1;
    const std::int64_t first = (tile - first_tiles[i]) * kTileOutputs;
    for (int r = 0; r < kTileOutputs && first + r < parts[i].size(0); ++r) rows[r] = row_of(parts[i], first + r);
  };
  pack_tiles(context, *find_weight_format(packed.dtype_), num_tiles_of(num_outputs), packed.num_inputs_, target,
             rows_of);
  return packed;
}

PackedWeights PackedWeights::pack_gate_up(Context& context, const ConstTensorView& gate, const ConstTensorView& up,
                                          std::span<std::byte> memory) {
  check_part(gate, "gate", gate);
  check_part(up, "up", gate);
  check_shape(kOp, "up", up, {gate.size(0), gate.size(1)});
  PackedWeights packed;
  packed.dtype_ = gate.dtype();
  packed.num_gated_outputs_ = gate.size(0);
  packed.num_outputs_ = 2 * num_tiles_of(gate.size(0)) * kTileOutputs;
  packed.num_inputs_ = gate.size(1);
  packed.bytes_ = packed_bytes(packed.dtype_, packed.num_outputs_, packed.num_inputs_);
  std::byte* const target = packed.take_memory(memory);
  const auto rows_of = [&](std::int64_t tile, std::array<const void*, kTileOutputs>& rows) {
    const std::int64_t first = tile / 2 * kTileOutputs;
    for (int r = 0; r < kTileOutputs && first + r < gate.size(0); ++r)
      rows[r] = row_of(tile % 2 == 0 ? gate : up, first + r);
  };
  pack_tiles(context, *find_weight_format(packed.dtype_), num_tiles_of(packed.num_outputs_), packed.num_inputs_, target,
             rows_of);
  return packed;
}

std::byte* PackedWeights::take_memory(std::span<std::byte> memory) {
  if (memory.empty()) {
    own_ = Buffer(bytes_);
    data_ = own_.data();
    return own_.data();
  }
  check_memory(memory, bytes_);
  data_ = memory.data();
  return memory.data();
}

}  // namespace ops_transformer
