// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dlpack/dlpack.h>

#include <array>
#include <cstdint>
#include <string_view>

#include "ops_transformer/base/error.h"
#include "ops_transformer/base/tensor_view.h"

// Tensors of other libraries, without copies. Includers need DLPack's header (Debian: libdlpack-dev), 0.6 or later.
namespace ops_transformer {

/// The same memory as a view. Throws InvalidArgument, which names `name`, where the tensor is not on the CPU, its dtype
/// has no equal here, it has more than kMaxRank dimensions, its data are not aligned to their type, or its extents are
/// negative or reach further than memory can.
OPS_TRANSFORMER_API TensorView from_dlpack(const DLTensor& tensor, std::string_view name = "tensor");

/// The same memory as a DLTensor, which points into this object. A consumer must not write where the view is const.
class OPS_TRANSFORMER_API DlpackView {
 public:
  /// Throws InvalidArgument for block-quantised types, which DLPack can't express.
  explicit DlpackView(const ConstTensorView& view);
  DlpackView(const DlpackView&) = delete;
  DlpackView& operator=(const DlpackView&) = delete;

  const DLTensor& tensor() const noexcept { return tensor_; }

 private:
  std::array<std::int64_t, kMaxRank> shape_{}, strides_{};
  DLTensor tensor_{};
};

}  // namespace ops_transformer
