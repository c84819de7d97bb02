// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops_transformer/base/context.h"
#include "ops_transformer/base/error.h"
#include "ops_transformer/base/memory.h"
#include "ops_transformer/base/tensor_view.h"
#include "ops_transformer/posembedding/rope_scaling.h"

namespace ops_transformer {

struct RopeAngles;

enum class RopeStyle : std::uint8_t {
  half_split,   // pairs (i, i + rotary_dim / 2): GPT-NeoX, Hugging Face
  interleaved,  // pairs (2i, 2i + 1): GPT-J, GGUF's llama
};

struct RopeOptions {
  std::int64_t rotary_dim = 0;  // even; dimensions from here on are not rotated
  double theta = 10000.0;       // >= 1; pair i turns by theta^(-2i / rotary_dim) radians a position
  RopeStyle style = RopeStyle::half_split;
  std::int64_t table_len = 2048;               // positions 0 … table_len - 1 are looked up, all others computed
  double position_scale = 1.0;                 // linear scaling: positions are divided by it; at most 2^20
  RopeScaling scaling{};                       // none, or NTK, Llama 3, YaRN
  std::span<const float> frequency_factors{};  // empty, or one per pair: divides its frequency
  // Factor times position_scale is at least 1/1024: 2^31 positions must not magnify what rounds a frequency into sight.
};

/// Rotation angles of a model, made once and shared by its layers and threads. cos and sin are within 1e-6 of the exact
/// ones (times YaRN's attention factor) for every position up to 2^31 either way: an angle is a 64-bit fraction of a
/// turn, so that a position's product wraps exactly where the angle does.
class OPS_TRANSFORMER_API RopeTable {
 public:
  static constexpr std::int64_t kMaxPosition = std::int64_t{1} << 31;

  /// Throws InvalidArgument.
  explicit RopeTable(const RopeOptions& options);

  std::int64_t rotary_dim() const noexcept { return rotary_dim_; }

  /// cos and sin of rotary_dim / 2 angles at any position within kMaxPosition, rounded from double. Throws
  /// InvalidArgument: a position past it, spans of another length.
  void cos_sin(std::int64_t position, std::span<float> cosines, std::span<float> sines) const;

  /// For kernels that rotate rows themselves (rope.inl.h); valid as long as the table.
  RopeAngles angles() const noexcept;

 private:
  std::int64_t rotary_dim_, table_len_;
  RopeStyle style_;
  double amplitude_;
  std::vector<std::uint64_t> turns_;  // of each pair for one position, in 2^-64 turns
  Buffer table_;                      // table_len rows of cos[rotary_dim / 2], sin[rotary_dim / 2]
};

/// Rotary position embedding (Su et al., 2021). Computed in f32 with one rounding at the end.
///
/// x          [tokens, heads, head_dim]  f32 | bf16 | f16, head_dim >= rotary_dim, last dimension contiguous
/// positions  [tokens]                   i32 | i64, from -2^31 to 2^31: every sequence may start where it likes
/// out        [tokens, heads, head_dim]  dtype of x, last dimension contiguous; x itself or no overlap
/// Throws InvalidArgument, which names the argument; past validation nothing fails.
OPS_TRANSFORMER_API void rotary_embedding(Context& context, const ConstTensorView& x, const ConstTensorView& positions,
                                          const RopeTable& table, const TensorView& out);

/// The same with the caller's angles.
///
/// cosines, sines  [table_len, rotary_dim / 2]  f32, last dimension contiguous, one row stride for both
/// positions       [tokens]                     i32 | i64, 0 … table_len - 1
OPS_TRANSFORMER_API void rotary_embedding(Context& context, const ConstTensorView& x, const ConstTensorView& positions,
                                          const ConstTensorView& cosines, const ConstTensorView& sines, RopeStyle style,
                                          const TensorView& out);

}  // namespace ops_transformer
