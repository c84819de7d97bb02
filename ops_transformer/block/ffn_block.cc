// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/block/ffn_block.h"

#include <fmt/format.h>

#include "ops_transformer/base/validate.h"
#include "ops_transformer/norm/norm_prologue.h"

namespace ops_transformer {
namespace {

constexpr const char* kOp = "ffn_block";

void validate(const ConstTensorView& x, const PackedWeights& gate_up, const PackedWeights& down, const TensorView& out,
              const FfnBlockOptions& options) {
  if (gate_up.num_gated_outputs() == 0 && gate_up.num_outputs() > 0) {
    invalid(kOp, "gate_up was packed by PackedWeights::pack, must be of pack_gate_up");
  }
  if (down.num_gated_outputs() > 0) invalid(kOp, "down was packed by pack_gate_up, must be of PackedWeights::pack");
  const std::int64_t hidden = gate_up.num_inputs();
  if (down.num_outputs() != hidden || down.num_inputs() != gate_up.num_gated_outputs()) {
    invalid(kOp, fmt::format("down is {} x {}, must be {} x {}", down.num_outputs(), down.num_inputs(), hidden,
                             gate_up.num_gated_outputs()));
  }
  check_shape(kOp, "x", x, {-1, hidden});
  check_dtype(kOp, "x", x, {DType::f32, DType::bf16, DType::f16});
  check_rows(kOp, "x", x);
  check_shape(kOp, "out", out, {x.size(0), hidden});
  check_dtype(kOp, "out", out, {x.dtype()});
  check_rows(kOp, "out", out);
  check_output(kOp, "out", out);
  check_no_overlap(kOp, "out", out, "x", x);
  if (options.activation > kLastActivation) {
    invalid(kOp, fmt::format("activation is {}, must be 0...{}", int(options.activation), int(kLastActivation)));
  }
  if (!options.norm) return;
  check_row_norm(kOp, x, *options.norm, out);
  if (options.norm->residual || options.norm->residual_out) {
    invalid(kOp, "norm.residual is given, must not be: the block's residual is x");
  }
}

}  // namespace

void ffn_block(Context& context, const ConstTensorView& x, const PackedWeights& gate_up, const PackedWeights& down,
               const TensorView& out, const FfnBlockOptions& options) {
  validate(x, gate_up, down, out, options);
  CallScope call(context);  // its arena holds the gated rows
  const std::int64_t tokens = x.size(0), intermediate = gate_up.num_gated_outputs();
  const TensorView gated(call.arena().allocate_bytes(std::size_t(tokens * intermediate) * element_bytes(x.dtype())),
                         x.dtype(), {tokens, intermediate});
  gated_linear(context, x, gate_up, gated,
               {.activation = options.activation, .arithmetic = options.arithmetic, .norm = options.norm});
  LinearOptions last{.arithmetic = options.arithmetic};
  if (options.residual_connection) last.residual = x;
  linear(context, gated, down, out, last);
}

}  // namespace ops_transformer
