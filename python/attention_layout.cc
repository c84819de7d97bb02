// SPDX-License-Identifier: Apache-2.0
#include "python/attention_layout.h"

#include <fmt/format.h>

#include <utility>

#include "ops_transformer/base/validate.h"

namespace ops_transformer::python {
namespace {

constexpr std::pair<std::string_view, Layout> kLayouts[] = {
    {"BSH", Layout::bsh}, {"SBH", Layout::sbh}, {"BSND", Layout::bsnd}, {"BNSD", Layout::bnsd}, {"TND", Layout::tnd}};

bool joins_heads(Layout layout) { return layout == Layout::bsh || layout == Layout::sbh; }

std::string_view name_of(Layout layout) { return kLayouts[int(layout)].first; }

void check_layout_rank(std::string_view op, std::string_view name, const ConstTensorView& view, Layout layout) {
  const auto rank = int(name_of(layout).size());
  if (view.rank() != rank) {
    invalid(op, fmt::format("{} must have {} dimensions in layout {}, got {}", name, rank, name_of(layout),
                            describe(view)));
  }
}

}  // namespace

Layout layout_of(std::string_view op, const std::optional<std::string>& layout, std::optional<std::int64_t> num_heads,
                 const ConstTensorView& query) {
  std::optional<Layout> found;
  if (layout) {
    for (const auto& [name, value] : kLayouts) {
      if (name == *layout) found = value;
    }
    if (!found) invalid(op, fmt::format("layout is '{}', must be BSH, SBH, BSND, BNSD or TND", *layout));
  } else if (query.rank() == 4) {
    found = num_heads ? Layout::bsnd : Layout::bnsd;
    if (num_heads && query.size(2) != *num_heads) {
      invalid(op, fmt::format("query is {}: with num_heads={} axis 2 must be the heads [batch, tokens, heads, dim]; "
                              "give layout=\"BNSD\" where they stand elsewhere",
                              describe(query), *num_heads));
    }
  } else if (query.rank() == 3 && num_heads) {
    found = Layout::bsh;
  } else if (query.rank() == 3) {
    invalid(op,
            fmt::format("query is {}: give num_heads= for [batch, tokens, heads * dim], or layout=", describe(query)));
  } else {
    invalid(op, fmt::format("query must have 3 or 4 dimensions, got {}", describe(query)));
  }
  check_layout_rank(op, "query", query, *found);
  if (joins_heads(*found)) {
    if (!num_heads) invalid(op, fmt::format("layout {} needs num_heads", name_of(*found)));
    if (*num_heads < 1) invalid(op, fmt::format("num_heads is {}, must be at least 1", *num_heads));
  } else if (num_heads) {
    const std::int64_t heads = query.size(*found == Layout::bsnd ? 2 : 1);
    if (heads != *num_heads) {
      invalid(op, fmt::format("num_heads is {}, query has {} in layout {}: {}", *num_heads, heads, name_of(*found),
                              describe(query)));
    }
  }
  return *found;
}

std::int64_t heads_in(std::string_view op, std::string_view name, const ConstTensorView& view, Layout layout,
                      std::int64_t head_dim) {
  check_layout_rank(op, name, view, layout);
  if (!joins_heads(layout)) return 0;
  if (head_dim < 1 || view.size(2) % head_dim != 0) {
    invalid(op, fmt::format("{} is {}, its last dimension must be a multiple of head_dim, {}", name, describe(view),
                            head_dim));
  }
  return view.size(2) / head_dim;
}

template <class Byte>
BasicTensorView<Byte> by_heads(std::string_view op, std::string_view name, const BasicTensorView<Byte>& view,
                               Layout layout, std::int64_t heads) {
  check_layout_rank(op, name, view, layout);
  if (layout == Layout::bnsd || layout == Layout::tnd) return view;
  if (layout == Layout::bsnd) {
    return {view.data(),
            view.dtype(),
            {view.size(0), view.size(2), view.size(1), view.size(3)},
            {view.stride(0), view.stride(2), view.stride(1), view.stride(3)}};
  }
  if (heads == 0 ? view.size(2) != 0 : view.size(2) % heads != 0) {
    invalid(op,
            fmt::format("{} is {}, its last dimension must be a multiple of {} heads", name, describe(view), heads));
  }
  const int batch = layout == Layout::bsh ? 0 : 1, token = 1 - batch;
  const std::int64_t dim = heads == 0 ? 0 : view.size(2) / heads;
  return {view.data(),
          view.dtype(),
          {view.size(batch), heads, view.size(token), dim},
          {view.stride(batch), dim * view.stride(2), view.stride(token), view.stride(2)}};
}
template TensorView by_heads(std::string_view, std::string_view, const TensorView&, Layout, std::int64_t);
template ConstTensorView by_heads(std::string_view, std::string_view, const ConstTensorView&, Layout, std::int64_t);

Shape out_shape(const ConstTensorView& query, const ConstTensorView& value, Layout layout) {
  const std::int64_t dim = value.size(value.rank() - 1);
  if (layout == Layout::tnd) return {{query.size(0), query.size(1), dim}, 3};
  const std::int64_t batch = query.size(0), heads = query.size(1), tokens = query.size(2);
  switch (layout) {
    case Layout::bsh:
      return {{batch, tokens, heads * dim}, 3};
    case Layout::sbh:
      return {{tokens, batch, heads * dim}, 3};
    case Layout::bsnd:
      return {{batch, tokens, heads, dim}, 4};
    default:
      return {{batch, heads, tokens, dim}, 4};
  }
}

Shape lse_shape(const ConstTensorView& query, Layout layout) {
  if (layout == Layout::tnd) return {{query.size(0), query.size(1)}, 2};
  return {{query.size(0), query.size(1), query.size(2)}, 3};
}

}  // namespace ops_transformer::python
