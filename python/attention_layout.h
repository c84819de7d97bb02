// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "ops_transformer/base/tensor_view.h"

// The ways in which attention's tensors may lie, as views of what the library takes.
namespace ops_transformer::python {

/// B batch, S tokens, N heads, D values of a head, H = N D, T tokens of all sequences.
enum class Layout : std::uint8_t { bsh, sbh, bsnd, bnsd, tnd };

/// `layout` always wins. Else a query of 4 dimensions is BNSD, and with num_heads those of 3 are BSH, of 4 BSND. Throws
/// InvalidArgument where that is not what the query looks like.
Layout layout_of(std::string_view op, const std::optional<std::string>& layout, std::optional<std::int64_t> num_heads,
                 const ConstTensorView& query);

/// A tensor as [batch, heads, tokens, dim] ([tokens, heads, dim] for TND). `heads` counts where heads and dim are one
/// dimension. Throws InvalidArgument (rank, heads that don't divide).
template <class Byte>
BasicTensorView<Byte> by_heads(std::string_view op, std::string_view name, const BasicTensorView<Byte>& view,
                               Layout layout, std::int64_t heads);

/// Heads in H of a tensor whose heads have `head_dim` values; 0 for other layouts. Throws InvalidArgument.
std::int64_t heads_in(std::string_view op, std::string_view name, const ConstTensorView& view, Layout layout,
                      std::int64_t head_dim);

/// Sizes of a result, from those of query and value by heads.
struct Shape {
  std::array<std::int64_t, 4> sizes;
  std::size_t rank;
  std::span<const std::int64_t> span() const { return {sizes.data(), rank}; }
};
Shape out_shape(const ConstTensorView& query, const ConstTensorView& value, Layout layout);
/// lse: [batch, heads, tokens], or [tokens, heads] for TND.
Shape lse_shape(const ConstTensorView& query, Layout layout);

}  // namespace ops_transformer::python
