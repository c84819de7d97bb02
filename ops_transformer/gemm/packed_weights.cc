// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/gemm/packed_weights.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>
#include <vector>

#include "ops_transformer/base/validate.h"
#include "ops_transformer/gemm/integer_weights.h"
#include "ops_transformer/gemm/pack_strided.h"
#include "ops_transformer/gemm/weight_format.h"
#include "ops_transformer/profiler/profiler.h"

namespace ops_transformer {
namespace {

constexpr const char* kPack = "PackedWeights::pack";
constexpr const char* kPackIntegers = "PackedWeights::pack_integers";
constexpr const char* kPackGateUp = "PackedWeights::pack_gate_up";
constexpr const char* kPackedBytes = "PackedWeights::packed_bytes";
// Keeps sums of sizes, and the bytes of a tile, far from 2^63.
constexpr std::int64_t kMaxSize = std::int64_t{1} << 40;

std::int64_t num_tiles_of(std::int64_t num_outputs) { return (num_outputs + kTileOutputs - 1) / kTileOutputs; }

const WeightFormat& format_of(const char* op, std::string_view name, DType dtype) {
  if (const WeightFormat* format = find_weight_format(dtype)) return *format;
  std::vector<std::string_view> names;
  for (const WeightFormat* format : weight_formats()) names.push_back(dtype_name(format->dtype));
  invalid(op, fmt::format("{} is {}, must be {}", name, dtype_name(dtype), fmt::join(names, " or ")));
}

std::size_t checked_bytes(const char* op, const WeightFormat& format, std::int64_t num_outputs, std::int64_t num_inputs,
                          const WeightScaling& scaling = {}) {
  if (std::min(num_outputs, num_inputs) < 0 || std::max(num_outputs, num_inputs) > kMaxSize) {
    invalid(op, fmt::format("sizes are {} x {}, must be from 0 to {}", num_outputs, num_inputs, kMaxSize));
  }
  std::ptrdiff_t bytes;
  if (__builtin_mul_overflow(num_tiles_of(num_outputs), format.tile_bytes(num_inputs, scaling), &bytes)) {
    invalid(op, fmt::format("sizes are {} x {}, whose bytes must be below 2^63", num_outputs, num_inputs));
  }
  return std::size_t(bytes);
}

void check_scaling(const char* op, DType dtype, std::int64_t num_inputs, const WeightScaling& scaling) {
  if (!is_integer_weight(dtype)) {
    if (scaling != WeightScaling{}) invalid(op, fmt::format("scaling is given, but weights are {}", dtype_name(dtype)));
    return;
  }
  if (!is_float(scaling.scales))
    invalid(op, fmt::format("scales is {}, must be f32 or bf16 or f16", dtype_name(scaling.scales)));
  const std::int64_t length = scaling.group_len;
  if (length == 0) return;
  if (length != 32 && length != 64 && length != 128 && length != 256)
    invalid(op, fmt::format("group_len is {}, must be 0, 32, 64, 128 or 256", length));
  if (num_inputs % length != 0)
    invalid(op, fmt::format("num_inputs is {}, must be a multiple of group_len, which is {}", num_inputs, length));
}

void check_part(const char* op, const ConstTensorView& part, const std::string& name, const ConstTensorView& first) {
  check_rank(op, name, part, 2);
  const WeightFormat& format = format_of(op, name, part.dtype());
  const auto block_len = std::int64_t(dtype_info(part.dtype()).block_len);
  if (block_len > 1) check_rows(op, name, part);
  if (part.size(1) % block_len != 0 || part.stride(0) % block_len != 0) {
    invalid(op, fmt::format("rows of {} must be multiples of {} elements, got length {} and stride {}", name, block_len,
                            part.size(1), part.stride(0)));
  }
  check_dtype(op, name, part, {first.dtype()});
  check_shape(op, name, part, {-1, first.size(1)});
  checked_bytes(op, format, part.size(0), part.size(1));
}

std::int64_t stride_of(const ConstTensorView& part, std::int64_t num_inputs) {
  return num_inputs > 1 ? part.stride(1) : 1;
}

const std::byte* row_of(const ConstTensorView& part, std::int64_t row) {
  const DTypeInfo& info = dtype_info(part.dtype());
  return part.as<std::byte>() + row * part.stride(0) / std::int64_t(info.block_len) * std::int64_t(info.block_bytes);
}

// rows_of(tile, rows) names the rows of a tile and returns how far their elements are apart; finish(tile, memory) adds
// what isn't in them.
template <class RowsOf, class Finish>
void pack_tiles(Context& context, const char* op, const PackedWeights& packed, std::byte* memory, bool strided,
                const RowsOf& rows_of, const Finish& finish) {
  if (packed.bytes() == 0) return;
  const WeightFormat& format = *find_weight_format(packed.dtype());
  const std::int64_t num_tiles = num_tiles_of(packed.num_outputs()), num_inputs = packed.num_inputs();
  const std::size_t tile_bytes = packed.bytes() / std::size_t(num_tiles);
  const Zone zone(context, op, {.bytes = 2 * std::int64_t(packed.bytes())});  // read, and written
  CallScope call(context);
  // Tiles of rows that are far apart share pages: eight of them take the same inputs in turn.
  constexpr std::int64_t kTilesTogether = 8, kInputsTogether = 256;
  const std::int64_t elements = kTileOutputs * num_inputs * (strided ? kTilesTogether : 1);
  const std::int64_t step = strided ? kTilesTogether : 1, num_items = (num_tiles + step - 1) / step;
  call.parallel_rows(num_items, elements, [&](std::int64_t first_item, std::int64_t last_item, int) {
    for (std::int64_t first = first_item * step; first < std::min(num_tiles, last_item * step); first += step) {
      const std::int64_t last = std::min(num_tiles, first + step);
      for (std::int64_t i = 0; i == 0 || (strided && i < num_inputs); i += kInputsTogether) {
        for (std::int64_t tile = first; tile < last; ++tile) {
          std::array<const void*, kTileOutputs> rows{};
          const std::int64_t stride = rows_of(tile, rows);
          std::byte* const target = memory + std::size_t(tile) * tile_bytes;
          if (is_integer_weight(packed.dtype())) {
            if (i == 0) pack_integer_tile(packed.dtype(), rows.data(), stride, num_inputs, packed.scaling(), target);
          } else if (!strided) {
            format.pack_tile(rows.data(), num_inputs, target);
          } else {
            pack_strided(packed.dtype(), rows.data(), stride, i, std::min(num_inputs, i + kInputsTogether), target);
          }
          if (i == 0) finish(tile, target);
        }
      }
    }
  });
}
template <class RowsOf>
void pack_tiles(Context& context, const char* op, const PackedWeights& packed, std::byte* memory, bool strided,
                const RowsOf& rows_of) {
  pack_tiles(context, op, packed, memory, strided, rows_of, [](std::int64_t, std::byte*) {});
}

// Scales and zeros of a tile's outputs from row `first` on.
void pack_scaling(const PackedWeights& packed, const IntegerWeightOptions& options, std::int64_t first,
                  std::byte* tile) {
  const IntegerLayout layout = integer_layout(packed.dtype(), packed.num_inputs(), packed.scaling());
  const auto scale_bytes = std::int64_t(element_bytes(packed.scaling().scales));
  for (int r = 0; r < kTileOutputs && first + r < packed.num_outputs(); ++r) {
    for (std::int64_t g = 0; g < layout.num_groups; ++g) {
      std::byte* const group = tile + g * layout.group_bytes;
      if (options.scales) {
        const ConstTensorView& scales = *options.scales;
        std::memcpy(group + layout.codes_bytes + r * scale_bytes,
                    scales.as<std::byte>() + ((first + r) * scales.stride(0) + g * scales.stride(1)) * scale_bytes,
                    std::size_t(scale_bytes));
      }
      if (options.zeros) {
        const std::int64_t at = (first + r) * options.zeros->stride(0) + g * options.zeros->stride(1);
        const int zero = packed.dtype() == DType::u8 ? int(options.zeros->as<std::uint8_t>()[at])
                                                     : int(options.zeros->as<std::int8_t>()[at]);
        group[layout.group_bytes - kTileOutputs + r] = std::byte(zero + code_of_zero(packed.dtype()));
      }
    }
  }
}

}  // namespace

std::size_t PackedWeights::packed_bytes(DType dtype, std::int64_t num_outputs, std::int64_t num_inputs,
                                        const WeightScaling& scaling) {
  const WeightFormat& format = format_of(kPackedBytes, "dtype", dtype);
  check_scaling(kPackedBytes, dtype, num_inputs, scaling);
  return checked_bytes(kPackedBytes, format, num_outputs, num_inputs, scaling);
}

PackedWeights PackedWeights::pack_integers(Context& context, const ConstTensorView& codes,
                                           const IntegerWeightOptions& options, std::span<std::byte> memory) {
  check_dtype(kPackIntegers, "codes", codes, {DType::s8, DType::u8, DType::s4});
  check_part(kPackIntegers, codes, "codes", codes);
  PackedWeights packed;
  packed.dtype_ = codes.dtype();
  packed.num_outputs_ = codes.size(0);
  packed.num_inputs_ = codes.size(1);
  packed.scaling_.group_len = options.group_len;
  packed.scaling_.has_zeros = options.zeros.has_value();
  if (options.scales) packed.scaling_.scales = options.scales->dtype();
  check_scaling(kPackIntegers, codes.dtype(), codes.size(1), packed.scaling_);
  const std::int64_t num_groups = options.group_len ? codes.size(1) / options.group_len : 1;
  if (options.scales) check_shape(kPackIntegers, "scales", *options.scales, {codes.size(0), num_groups});
  if (options.zeros) {
    check_shape(kPackIntegers, "zeros", *options.zeros, {codes.size(0), num_groups});
    check_dtype(kPackIntegers, "zeros", *options.zeros, {codes.dtype() == DType::u8 ? DType::u8 : DType::s8});
    for (std::int64_t i = 0; codes.dtype() == DType::s4 && i < codes.size(0) * num_groups; ++i) {
      const std::int64_t row = i / num_groups, group = i % num_groups;
      const int zero =
          options.zeros->as<std::int8_t>()[row * options.zeros->stride(0) + group * options.zeros->stride(1)];
      if (zero < -8 || zero > 7)
        invalid(kPackIntegers, fmt::format("zeros[{}, {}] is {}, must be from -8 to 7 for s4", row, group, zero));
    }
  }
  packed.bytes_ = checked_bytes(kPackIntegers, *find_weight_format(codes.dtype()), packed.num_outputs_,
                                packed.num_inputs_, packed.scaling_);
  std::byte* const target = packed.take_memory(kPackIntegers, memory);
  pack_tiles(
      context, kPackIntegers, packed, target, stride_of(codes, packed.num_inputs()) != 1,
      [&](std::int64_t tile, std::array<const void*, kTileOutputs>& rows) {
        for (int r = 0; r < kTileOutputs && tile * kTileOutputs + r < codes.size(0); ++r)
          rows[r] = row_of(codes, tile * kTileOutputs + r);
        return stride_of(codes, packed.num_inputs());
      },
      [&](std::int64_t tile, std::byte* memory_of_tile) {
        pack_scaling(packed, options, tile * kTileOutputs, memory_of_tile);
      });
  return packed;
}

PackedWeights PackedWeights::pack(Context& context, std::span<const ConstTensorView> parts,
                                  std::span<std::byte> memory) {
  if (parts.empty()) invalid(kPack, "parts is empty, must hold at least one tensor");
  PackedWeights packed;
  std::int64_t num_outputs = 0;
  std::vector<std::int64_t> first_tiles;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    check_part(kPack, parts[i], fmt::format("parts[{}]", i), parts[0]);
    if (num_outputs % kTileOutputs != 0) {
      invalid(kPack, fmt::format("parts[{}] has {} outputs, must be a multiple of {} as another part follows", i - 1,
                                 parts[i - 1].size(0), kTileOutputs));
    }
    first_tiles.push_back(num_outputs / kTileOutputs);
    num_outputs += parts[i].size(0);
    packed.bytes_ = checked_bytes(kPack, *find_weight_format(parts[0].dtype()), num_outputs, parts[0].size(1));
  }
  packed.dtype_ = parts[0].dtype();
  packed.num_outputs_ = num_outputs;
  packed.num_inputs_ = parts[0].size(1);
  std::byte* const target = packed.take_memory(kPack, memory);
  const auto rows_of = [&](std::int64_t tile, std::array<const void*, kTileOutputs>& rows) {
    const auto i = std::size_t(std::ranges::upper_bound(first_tiles, tile) - first_tiles.begin()) - 1;
    const std::int64_t first = (tile - first_tiles[i]) * kTileOutputs;
    for (int r = 0; r < kTileOutputs && first + r < parts[i].size(0); ++r) rows[r] = row_of(parts[i], first + r);
    return stride_of(parts[i], packed.num_inputs());
  };
  const bool strided = std::ranges::any_of(
      parts, [&](const ConstTensorView& part) { return stride_of(part, packed.num_inputs()) != 1; });
  pack_tiles(context, kPack, packed, target, strided, rows_of);
  return packed;
}

PackedWeights PackedWeights::pack_gate_up(Context& context, const ConstTensorView& gate, const ConstTensorView& up,
                                          std::span<std::byte> memory) {
  check_part(kPackGateUp, gate, "gate", gate);
  check_part(kPackGateUp, up, "up", gate);
  check_shape(kPackGateUp, "up", up, {gate.size(0), gate.size(1)});
  PackedWeights packed;
  packed.dtype_ = gate.dtype();
  packed.num_gated_outputs_ = gate.size(0);
  packed.num_outputs_ = 2 * num_tiles_of(gate.size(0)) * kTileOutputs;
  packed.num_inputs_ = gate.size(1);
  packed.bytes_ =
      checked_bytes(kPackGateUp, *find_weight_format(gate.dtype()), packed.num_outputs_, packed.num_inputs_);
  std::byte* const target = packed.take_memory(kPackGateUp, memory);
  const auto rows_of = [&](std::int64_t tile, std::array<const void*, kTileOutputs>& rows) {
    const std::int64_t first = tile / 2 * kTileOutputs;
    for (int r = 0; r < kTileOutputs && first + r < gate.size(0); ++r)
      rows[r] = row_of(tile % 2 == 0 ? gate : up, first + r);
    return stride_of(tile % 2 == 0 ? gate : up, packed.num_inputs());
  };
  const bool strided = stride_of(gate, packed.num_inputs()) != 1 || stride_of(up, packed.num_inputs()) != 1;
  pack_tiles(context, kPackGateUp, packed, target, strided, rows_of);
  return packed;
}

std::byte* PackedWeights::take_memory(const char* op, std::span<std::byte> memory) {
  if (memory.empty()) {
    own_ = Buffer(bytes_);
    memory = {own_.data(), bytes_};
  }
  if (memory.size() < bytes_) invalid(op, fmt::format("memory has {} bytes, needs {}", memory.size(), bytes_));
  if (reinterpret_cast<std::uintptr_t>(memory.data()) % kAlignment != 0) {
    invalid(op, fmt::format("memory is at {}, must be aligned to {} bytes", fmt::ptr(memory.data()), kAlignment));
  }
  data_ = memory.data();
  return memory.data();
}

}  // namespace ops_transformer
