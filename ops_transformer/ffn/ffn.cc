// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/ffn/ffn.h"

#include <fmt/format.h>

#include "ops_transformer/base/validate.h"
#include "ops_transformer/ffn/gated_linear.h"

namespace ops_transformer {
namespace {

constexpr const char* kOp = "ffn";

ConstTensorView packed_view(const PackedWeights& weights) {
  return {weights.data(), DType::u8, {std::int64_t(weights.bytes())}};
}

void check_weights(std::span<const PackedWeights* const> w1, std::span<const PackedWeights* const> w2,
                   const TensorView& out) {
  if (w1.empty() || w1.size() != w2.size()) {
    invalid(kOp,
            fmt::format("w1 and w2 have {} and {} experts, must have one or more, as many each", w1.size(), w2.size()));
  }
  const PackedWeights& first = *w1[0];
  for (std::size_t e = 0; e < w1.size(); ++e) {
    if (w1[e]->num_outputs() != first.num_outputs() || w1[e]->num_inputs() != first.num_inputs() ||
        w1[e]->num_gated_outputs() != first.num_gated_outputs()) {
      invalid(kOp, fmt::format("w1[{}] is {} x {}, must be {} x {} as w1[0], and gated where it is", e,
                               w1[e]->num_outputs(), w1[e]->num_inputs(), first.num_outputs(), first.num_inputs()));
    }
    const std::int64_t between = first.num_gated_outputs() > 0 ? first.num_gated_outputs() : first.num_outputs();
    if (w2[e]->num_gated_outputs() > 0 || w2[e]->num_outputs() != first.num_inputs() ||
        w2[e]->num_inputs() != between) {
      invalid(kOp, fmt::format("w2[{}] is {} x {}, must be {} x {} of PackedWeights::pack", e, w2[e]->num_outputs(),
                               w2[e]->num_inputs(), first.num_inputs(), between));
    }
    check_no_overlap(kOp, "out", out, "w1", packed_view(*w1[e]));
    check_no_overlap(kOp, "out", out, "w2", packed_view(*w2[e]));
  }
}

// Rows [begin, end) of an expert.
std::int64_t end_of(const FfnOptions& options, std::size_t expert, std::int64_t begin, std::int64_t tokens) {
  if (options.expert_tokens.empty()) return tokens;
  return options.expert_tokens[expert] + (options.expert_tokens_are_ends ? 0 : begin);
}

void check_bias(const char* name, const std::optional<ConstTensorView>& bias, std::size_t experts, std::int64_t size,
                const TensorView& out) {
  if (!bias) return;
  check_shape(kOp, name, *bias, {std::int64_t(experts), size});
  check_dtype(kOp, name, *bias, {DType::f32});
  check_rows(kOp, name, *bias);
  check_no_overlap(kOp, "out", out, name, *bias);
}

void validate(const ConstTensorView& x, std::span<const PackedWeights* const> w1,
              std::span<const PackedWeights* const> w2, const TensorView& out, const FfnOptions& options) {
  check_weights(w1, w2, out);
  const std::int64_t hidden = w1[0]->num_inputs();
  check_shape(kOp, "x", x, {-1, hidden});
  check_dtype(kOp, "x", x, {DType::f32, DType::bf16, DType::f16});
  check_rows(kOp, "x", x);
  check_shape(kOp, "out", out, {x.size(0), hidden});
  check_dtype(kOp, "out", out, {DType::f32, DType::bf16, DType::f16});
  check_rows(kOp, "out", out);
  check_output(kOp, "out", out);
  check_no_overlap(kOp, "out", out, "x", x);
  if (options.activation > kLastActivation) {
    invalid(kOp, fmt::format("activation is {}, must be 0...{}", int(options.activation), int(kLastActivation)));
  }
  const std::int64_t gated = w1[0]->num_gated_outputs();
  check_bias("bias1", options.bias1, w1.size(), gated > 0 ? 2 * gated : w1[0]->num_outputs(), out);
  check_bias("bias2", options.bias2, w1.size(), hidden, out);
  if (options.expert_tokens.size() != w1.size() && !(options.expert_tokens.empty() && w1.size() == 1)) {
    invalid(kOp, fmt::format("expert_tokens has {} entries, must have one for each of {} experts",
                             options.expert_tokens.size(), w1.size()));
  }
  std::int64_t begin = 0;
  for (std::size_t e = 0; e < options.expert_tokens.size(); ++e) {
    const std::int64_t value = options.expert_tokens[e], least = options.expert_tokens_are_ends ? begin : 0,
                       most = options.expert_tokens_are_ends ? x.size(0) : x.size(0) - begin;
    if (value < least || value > most) {
      invalid(kOp, fmt::format("expert_tokens[{}] is {}, must be from {} to {}", e, value, least, most));
    }
    begin = end_of(options, e, begin, x.size(0));
  }
}

template <class View>
View rows_of(const View& view, std::int64_t begin, std::int64_t end) {
  return View(view.template as<std::byte>() + begin * view.stride(0) * std::int64_t(element_bytes(view.dtype())),
              view.dtype(), {end - begin, view.size(1)}, {view.stride(0), 1});
}

}  // namespace

void ffn(Context& context, const ConstTensorView& x, std::span<const PackedWeights* const> w1,
         std::span<const PackedWeights* const> w2, const TensorView& out, const FfnOptions& options) {
  validate(x, w1, w2, out, options);
  const bool gated = w1[0]->num_gated_outputs() > 0;
  const std::int64_t between = w2[0]->num_inputs();
  CallScope call(context);  // its arena holds what passes between the matmuls
  const TensorView inner(call.arena().allocate_bytes(std::size_t(x.size(0) * between) * element_bytes(x.dtype())),
                         x.dtype(), {x.size(0), between});
  std::int64_t begin = 0;
  for (std::size_t e = 0; e < w1.size(); ++e) {
    const std::int64_t end = end_of(options, e, begin, x.size(0));
    if (end > begin) {
      const auto bias_of = [&](const ConstTensorView& bias) {
        return ConstTensorView(bias.as<float>() + std::int64_t(e) * bias.stride(0), DType::f32, {bias.size(1)});
      };
      const TensorView rows = rows_of(inner, begin, end);
      if (gated) {
        GatedLinearOptions first{.activation = options.activation, .arithmetic = options.arithmetic};
        if (options.bias1) first.bias = bias_of(*options.bias1);
        gated_linear(context, rows_of(x, begin, end), *w1[e], rows, first);
      } else {
        LinearOptions first{.activation = options.activation, .arithmetic = options.arithmetic};
        if (options.bias1) first.bias = bias_of(*options.bias1);
        linear(context, rows_of(x, begin, end), *w1[e], rows, first);
      }
      LinearOptions second{.arithmetic = options.arithmetic};
      if (options.bias2) second.bias = bias_of(*options.bias2);
      linear(context, rows, *w2[e], rows_of(out, begin, end), second);
    }
    begin = end;
  }
}

}  // namespace ops_transformer
