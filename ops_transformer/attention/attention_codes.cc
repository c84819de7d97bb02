// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/attention/attention_codes.h"

#include <fmt/format.h>

#include <string>

#include "ops_transformer/base/validate.h"

namespace ops_transformer {
namespace {

using Grid = std::optional<ConstTensorView>;

// Dimensions counted from the last one, as broadcasting sees them. Without a batch dimension there is none to vary.
std::int64_t size_of(const ConstTensorView& grid, int from_last) {
  return from_last < grid.rank() ? grid.size(grid.rank() - 1 - from_last) : 1;
}
std::int64_t stride_of(const ConstTensorView& grid, int from_last) {
  return size_of(grid, from_last) == 1 ? 0 : grid.stride(grid.rank() - 1 - from_last);
}
int token_dim(const AttentionCall& call) { return call.k.rank() - 1 - call.kv_axes.token; }
int head_dim(const AttentionCall& call) { return call.k.rank() - 1 - call.kv_axes.head; }

bool varies_by_token(const AttentionCall& call, const Grid& grid) {
  return grid && (size_of(*grid, token_dim(call)) != 1 || (call.kv_axes.batched && size_of(*grid, 3) != 1));
}
bool varies_by_channel(const Grid& grid) { return grid && size_of(*grid, 0) != 1; }

void check_grid(const AttentionCall& call, const std::string& name, const ConstTensorView& grid,
                const ConstTensorView& codes, const char* codes_name) {
  check_dtype(call.op, name, grid, {DType::f32});
  bool fits = grid.rank() <= codes.rank();
  for (int d = 0; fits && d < grid.rank(); ++d) {
    fits = size_of(grid, d) == 1 || size_of(grid, d) == codes.size(codes.rank() - 1 - d);
  }
  if (!fits) {
    invalid(call.op,
            fmt::format("{} is {}, must broadcast to {}, {}", name, describe(grid), codes_name, describe(codes)));
  }
  check_rows(call.op, name, grid);
}

void check_pair(const AttentionCall& call, const char* name, const ConstTensorView& codes, const Grid& scales,
                const Grid& offsets) {
  const std::string scales_name = fmt::format("{}_scales", name), offsets_name = fmt::format("{}_offsets", name);
  if (codes.dtype() != DType::s8) {
    for (const auto& [grid_name, grid] : {std::pair{&scales_name, &scales}, {&offsets_name, &offsets}}) {
      if (*grid)
        invalid(call.op,
                fmt::format("{} is given, which only s8 has: {} is {}", *grid_name, name, dtype_name(codes.dtype())));
    }
    return;
  }
  if (!scales) invalid(call.op, fmt::format("{} is s8 and needs {}", name, scales_name));
  check_grid(call, scales_name, *scales, codes, name);
  if (offsets) check_grid(call, offsets_name, *offsets, codes, name);
  if ((varies_by_token(call, scales) || varies_by_token(call, offsets)) &&
      (varies_by_channel(scales) || varies_by_channel(offsets))) {
    invalid(call.op,
            fmt::format("{} and {} vary by token and by channel, must by one of them", scales_name, offsets_name));
  }
}

CodeGrid grid_of(const AttentionCall& call, const Grid& grid) {
  if (!grid) return {};
  return {grid->as<float>(), call.kv_axes.batched ? stride_of(*grid, 3) : 0, stride_of(*grid, head_dim(call)),
          stride_of(*grid, token_dim(call)), stride_of(*grid, 0)};
}

}  // namespace

void check_codes(const AttentionCall& call) {
  check_pair(call, "k", call.k, call.options.k_scales, call.options.k_offsets);
  check_pair(call, "v", call.v, call.options.v_scales, call.options.v_offsets);
}

CodeValues codes_of(const AttentionCall& call, const Grid& scales, const Grid& offsets) {
  return {grid_of(call, scales), grid_of(call, offsets),
          varies_by_token(call, scales) || varies_by_token(call, offsets)};
}

}  // namespace ops_transformer
