// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops_transformer/base/dtype.h"

namespace ops_transformer {

/// Packs inputs [first, last) of a tile of floats whose rows' elements are `stride` apart: as the format's pack_tile.
/// `first` is even. rows[0…15] as there.
void pack_strided(DType dtype, const void* const* rows, std::int64_t stride, std::int64_t first, std::int64_t last,
                  std::byte* tile) noexcept;

}  // namespace ops_transformer
