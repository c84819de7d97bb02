// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "ops_transformer/attention/flash_attention.h"

namespace ops_transformer {

inline constexpr std::int64_t kAllTokens = 2147483647;

/// Masks as Ascend's attention operators number them. i is a query's row, j a key's column, both counted within their
/// sequence; d = kv_len - q_len.
///   0  atten_mask, and with one: i - pre_tokens <= j <= i + next_tokens
///   1  atten_mask
///   2  j <= i                     3  j <= i + d
///   4  i + d - pre_tokens <= j <= i + d + next_tokens
///   5, 6  as 3, and columns below prefix_lens[sequence]
///   7  packed sequences: 4 for the last one that has queries, 3 for the others
///   8  packed sequences: 4 for the first one that has queries, 2 for the others
///   9  atten_mask over the last q_len columns, all before them visible
struct SparseMode {
  int mode = 0;
  std::int64_t pre_tokens = kAllTokens;  // kAllTokens and more: no limit; negative where a band may be (0, 4, 7, 8)
  std::int64_t next_tokens = kAllTokens;
  // boolean | u8 | s8, anything but 0 = hidden (the opposite of `visible`). 0, 1: broadcasts as `visible`; 9: [batch or
  // 1, q_len, q_len], packed [sum of q_len^2]. The other modes follow their rule and never read it.
  std::optional<ConstTensorView> atten_mask{};
};

/// FlashAttentionOptions under a SparseMode; owns the turned mask, so it must outlive the call.
class OPS_TRANSFORMER_API SparseModeOptions {
 public:
  /// `options` must state no mask of its own (mask, align, windows, visible, tree). q_offsets: those of packed
  /// sequences, else empty. Throws InvalidArgument (mode, a mask or prefixes that the mode needs).
  SparseModeOptions(const char* op, FlashAttentionOptions options, const SparseMode& sparse,
                    std::span<const std::int64_t> q_offsets = {});
  SparseModeOptions(const SparseModeOptions&) = delete;
  SparseModeOptions& operator=(const SparseModeOptions&) = delete;

  const FlashAttentionOptions& options() const { return options_; }

 private:
  FlashAttentionOptions options_;
  std::vector<std::uint8_t> visible_;
};

}  // namespace ops_transformer
