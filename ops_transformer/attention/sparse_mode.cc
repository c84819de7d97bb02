// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/attention/sparse_mode.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "ops_transformer/base/validate.h"

namespace ops_transformer {
namespace {

void check_no_other_mask(const char* op, const FlashAttentionOptions& options, int mode) {
  const bool window = options.window != kNoWindow || options.window_left != kNoWindow ||
                      options.window_right != kNoWindow || options.outer_cut != OuterCut::none;
  const char* name = options.mask != Mask::none         ? "causal"
                     : options.align != MaskAlign::last ? "align"
                     : window                           ? "window"
                     : options.visible                  ? "visible"
                     : options.tree                     ? "tree"
                                                        : nullptr;
  if (name) invalid(op, fmt::format("sparse_mode is {} and {} is given too, give one of them", mode, name));
}

// Dense booleans that are true where the mask is 0.
std::vector<std::uint8_t> turned(const ConstTensorView& mask) {
  std::vector<std::uint8_t> result(std::size_t(mask.num_elements()));
  std::array<std::int64_t, kMaxRank> index{};
  const auto* data = mask.as<std::uint8_t>();
  std::int64_t offset = 0;
  for (std::uint8_t& visible : result) {
    visible = data[offset] == 0;
    for (int dim = mask.rank() - 1; dim >= 0; --dim) {
      offset += mask.stride(dim);
      if (++index[std::size_t(dim)] < mask.size(dim)) break;
      offset -= mask.size(dim) * mask.stride(dim);
      index[std::size_t(dim)] = 0;
    }
  }
  return result;
}

// Squares of the sequences one after another, as rows of the longest one.
std::vector<std::uint8_t> squares_as_rows(const char* op, const std::vector<std::uint8_t>& flat,
                                          std::span<const std::int64_t> q_offsets, std::int64_t& columns) {
  const auto size = std::int64_t(flat.size());
  std::int64_t needed = 0, longest = 1;
  bool fits = q_offsets[0] == 0;
  for (std::size_t b = 0; fits && b + 1 < q_offsets.size(); ++b) {
    fits = q_offsets[b + 1] >= q_offsets[b] && q_offsets[b + 1] - q_offsets[b] <= size;
    const std::int64_t q_len = fits ? q_offsets[b + 1] - q_offsets[b] : 0;
    needed += q_len * q_len;
    longest = std::max(longest, q_len);
    fits = fits && needed <= size;
  }
  if (!fits || needed != size) {
    invalid(op, fmt::format("atten_mask has {} elements, must be the sum of the sequences' q_len^2", size));
  }
  columns = longest;
  std::vector<std::uint8_t> rows(std::size_t(q_offsets.back() * longest), 0);
  auto from = flat.begin();
  for (std::size_t b = 0; b + 1 < q_offsets.size(); ++b) {
    const std::int64_t q_len = q_offsets[b + 1] - q_offsets[b];
    for (std::int64_t row = q_offsets[b]; row < q_offsets[b + 1]; ++row, from += q_len) {
      std::copy_n(from, q_len, rows.begin() + row * longest);
    }
  }
  return rows;
}

}  // namespace

SparseModeOptions::SparseModeOptions(const char* op, FlashAttentionOptions options, const SparseMode& sparse,
                                     std::span<const std::int64_t> q_offsets)
    : options_(options) {
  const int mode = sparse.mode;
  if (mode < 0 || mode > 9) invalid(op, fmt::format("sparse_mode is {}, must be from 0 to 9", mode));
  check_no_other_mask(op, options, mode);
  const bool by_prefix = mode == 5 || mode == 6;
  if (by_prefix == options.prefix_lens.empty()) {
    invalid(op, fmt::format("sparse_mode is {}, which {}", mode,
                            by_prefix ? "needs prefix_lens" : "has no prefix_lens; 5 and 6 have"));
  }
  if ((mode == 1 || mode == 9) && !sparse.atten_mask) {
    invalid(op, fmt::format("sparse_mode is {}, which needs atten_mask", mode));
  }
  if ((mode == 7 || mode == 8) && q_offsets.empty()) {
    invalid(op, fmt::format("sparse_mode is {}, which needs packed sequences (TND)", mode));
  }
  const bool band = mode == 4 || mode == 7 || mode == 8 || (mode == 0 && sparse.atten_mask);
  if (band) {
    options_.window_left = sparse.pre_tokens >= kAllTokens ? kNoWindow : sparse.pre_tokens;
    options_.window_right = sparse.next_tokens >= kAllTokens ? kNoWindow : sparse.next_tokens;
  }
  if (mode == 7) options_.outer_cut = OuterCut::last;
  if (mode == 8) options_.outer_cut = OuterCut::first;
  if (mode == 0 || mode == 2 || mode == 8) options_.align = MaskAlign::first;
  if (mode == 2 || mode == 3 || by_prefix || mode == 7 || mode == 8) options_.mask = Mask::causal;

  if (!sparse.atten_mask || (mode != 0 && mode != 1 && mode != 9)) return;
  const ConstTensorView& mask = *sparse.atten_mask;
  check_dtype(op, "atten_mask", mask, {DType::boolean, DType::u8, DType::s8});
  visible_ = turned(mask);
  auto& rule = mode == 9 ? options_.tree : options_.visible;
  if (mode == 9 && !q_offsets.empty()) {
    check_rank(op, "atten_mask", mask, 1);
    std::int64_t columns = 0;
    visible_ = squares_as_rows(op, visible_, q_offsets, columns);
    rule = ConstTensorView(visible_.data(), DType::boolean, {q_offsets.back(), columns});
  } else {
    rule = ConstTensorView(visible_.data(), DType::boolean, mask.shape());
  }
}

}  // namespace ops_transformer
