// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "ops_transformer/base/context.h"
#include "ops_transformer/base/error.h"
#include "ops_transformer/base/memory.h"
#include "ops_transformer/base/tensor_view.h"

namespace ops_transformer {

/// What integer weights stand for: scale * (code - zero), a scale and a zero for each output and group of inputs.
struct IntegerWeightOptions {
  std::optional<ConstTensorView> scales{};  // [num_outputs, num_groups] f32 | bf16 | f16; unset: 1
  std::optional<ConstTensorView> zeros{};  // [num_outputs, num_groups] dtype of the codes, s8 for s4 (-8...7); unset: 0
  std::int64_t group_len = 0;              // inputs of a group: 32, 64, 128 or 256; 0: all inputs are one
};

/// The same as packed; part of a problem.
struct WeightScaling {
  std::int64_t group_len = 0;
  DType scales = DType::f32;
  bool has_zeros = false;

  bool operator==(const WeightScaling&) const = default;
};

/// Weights of a matmul in the order in which its kernels read them: tiles of 16 outputs, each [num_inputs][16] (bf16
/// and the quantised types: in their own units along the inputs). The order is the same at every instruction-set level.
/// Immutable after packing, so any number of threads and contexts may share one.
class OPS_TRANSFORMER_API PackedWeights {
 public:
  PackedWeights() = default;

  /// parts   each [num_outputs_i, num_inputs] f32 | bf16 | f16 | s8 | u8 in any strides, or s4 | any block-quantised
  /// type
  ///         in contiguous rows, all of one dtype; stacked along the outputs (q, k and v in one matmul); num_outputs_i
  ///         % 16 == 0 for all but the last
  /// memory  where to pack, 64-byte aligned, at least packed_bytes; it must outlive the object. Empty: own memory
  /// Throws InvalidArgument.
  static PackedWeights pack(Context& context, std::span<const ConstTensorView> parts, std::span<std::byte> memory = {});
  static PackedWeights pack(Context& context, const ConstTensorView& weight, std::span<std::byte> memory = {}) {
    return pack(context, std::span(&weight, 1), memory);
  }

  /// gate, up [n, num_inputs], packed tile by tile in turn: what gated_linear reads. num_outputs() is 2 n, with n
  /// rounded up to a multiple of 16. Throws InvalidArgument.
  static PackedWeights pack_gate_up(Context& context, const ConstTensorView& gate, const ConstTensorView& up,
                                    std::span<std::byte> memory = {});

  /// codes [num_outputs, num_inputs] s8 | u8 in any strides, or s4 in contiguous rows. `pack` takes them too, with
  /// scales of 1. Throws InvalidArgument: num_inputs must be whole groups.
  static PackedWeights pack_integers(Context& context, const ConstTensorView& codes,
                                     const IntegerWeightOptions& options, std::span<std::byte> memory = {});

  /// Throws InvalidArgument: a dtype that can't be packed; sizes not from 0 to 2^40, or of 2^63 bytes together.
  static std::size_t packed_bytes(DType dtype, std::int64_t num_outputs, std::int64_t num_inputs,
                                  const WeightScaling& scaling = {});

  /// Writes them as they are packed, with a checksum; a file at `path` is replaced once all is written. Throws
  /// SystemFailure.
  void save(const std::string& path) const;
  /// Reads what save wrote. Whatever the file holds is checked first: sizes against each other and against the file's
  /// own before they size anything, then the checksum. Throws InvalidFile, which names what is wrong; SystemFailure.
  static PackedWeights load(const std::string& path);

  DType dtype() const noexcept { return dtype_; }
  std::int64_t num_outputs() const noexcept { return num_outputs_; }
  std::int64_t num_inputs() const noexcept { return num_inputs_; }
  /// n of pack_gate_up; 0 for weights of pack.
  std::int64_t num_gated_outputs() const noexcept { return num_gated_outputs_; }
  const WeightScaling& scaling() const noexcept { return scaling_; }
  std::size_t bytes() const noexcept { return bytes_; }
  const std::byte* data() const noexcept { return data_; }

 private:
  std::byte* take_memory(const char* op, std::span<std::byte> memory);

  DType dtype_ = DType::f32;
  std::int64_t num_outputs_ = 0, num_inputs_ = 0, num_gated_outputs_ = 0;
  WeightScaling scaling_;
  std::size_t bytes_ = 0;
  const std::byte* data_ = nullptr;
  Buffer own_;
};

}  // namespace ops_transformer
