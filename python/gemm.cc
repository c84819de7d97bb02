// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ops_transformer/base/validate.h"
#include "ops_transformer/ffn/gated_linear.h"
#include "ops_transformer/gemm/dequantise.h"
#include "ops_transformer/gemm/linear.h"
#include "ops_transformer/gemm/packed_weights.h"
#include "ops_transformer/gemm/tensor_matmul.h"
#include "python/activation.h"
#include "python/array.h"
#include "python/bindings.h"

namespace ops_transformer::python {

Activation activation_from_name(std::string_view operation, std::string_view name) {
  constexpr std::pair<std::string_view, Activation> kActivations[] = {
      {"none", Activation::none},           {"relu", Activation::relu},         {"silu", Activation::silu},
      {"gelu_tanh", Activation::gelu_tanh}, {"gelu_erf", Activation::gelu_erf}, {"gelu_fast", Activation::gelu_fast}};
  for (const auto& [known, activation] : kActivations) {
    if (known == name) return activation;
  }
  invalid(
      operation,
      fmt::format("activation is '{}', must be 'none', 'relu', 'silu', 'gelu_tanh', 'gelu_erf' or 'gelu_fast'", name));
}

namespace {

using namespace nb::literals;

/// Rows of a quantised type come as their bytes, [num_outputs, bytes of a row] uint8, as the gguf package reads them.
ConstTensorView as_weight(std::string_view name, const ConstTensorView& array,
                          const std::optional<std::string>& dtype) {
  constexpr std::string_view kOp = "PackedWeights";
  if (!dtype) return array;
  const DTypeInfo* info = nullptr;
  DType type = DType::f32;
  for (int i = 0; i < kNumDTypes; ++i) {
    if (is_block_quantised(DType(i)) && dtype_name(DType(i)) == *dtype) info = &dtype_info(type = DType(i));
  }
  if (!info) invalid(kOp, fmt::format("dtype is '{}', must be a block-quantised type such as 'q4_0'", *dtype));
  check_rank(kOp, name, array, 2);
  check_dtype(kOp, name, array, {DType::u8});
  check_rows(kOp, name, array);
  const auto block_bytes = std::int64_t(info->block_bytes), block_len = std::int64_t(info->block_len);
  if (array.size(1) % block_bytes != 0 || array.stride(0) % block_bytes != 0) {
    invalid(kOp, fmt::format("rows of {} must be whole blocks of {} bytes, got {} bytes with stride {}", name,
                             block_bytes, array.size(1), array.stride(0)));
  }
  return {array.data(),
          type,
          {array.size(0), array.size(1) / block_bytes * block_len},
          {array.stride(0) / block_bytes * block_len, 1}};
}

ArrayOfKind run_dequantise(const ArrayOfKind& blocks, const std::string& dtype, const std::optional<ArrayOfKind>& out) {
  constexpr std::string_view kOp = "dequantise";
  const Input input = import_input(kOp, "blocks", blocks);
  const ConstTensorView rows = as_weight("blocks", input.view, dtype);
  const Output result = output_or_new(kOp, "out", out, input, DType::f32, rows.shape());
  check_same_shape(kOp, "out", result.view, rows.shape());
  check_dtype(kOp, "out", result.view, {DType::f32});
  check_rows(kOp, "out", result.view);
  {
    const nb::gil_scoped_release released;
    for (std::int64_t r = 0; r < rows.size(0); ++r) {
      dequantise_rows(rows.dtype(), input.view.as<std::byte>() + r * input.view.stride(0), rows.size(1),
                      result.view.as<float>() + r * result.view.stride(0));
    }
  }
  return ArrayOfKind(result.source);
}

void construct_weights(PackedWeights* self, const ArrayArgument& weight, const std::optional<std::string>& dtype,
                       Context* context) {
  const Input array = import_input("PackedWeights", "weight", weight);
  const ConstTensorView view = as_weight("weight", array.view, dtype);
  const nb::gil_scoped_release released;
  new (self) PackedWeights(PackedWeights::pack(context_or_default(context), view));
}

/// Codes of s4 come as uint8, two to a byte, the even index in the low bits.
PackedWeights pack_integers(const ArrayArgument& codes, const std::optional<ArrayArgument>& scales,
                            const std::optional<ArrayArgument>& zeros, std::int64_t group_len,
                            const std::optional<std::string>& dtype, Context* context) {
  constexpr std::string_view kOp = "PackedWeights.integers";
  const Input array = import_input(kOp, "codes", codes);
  ConstTensorView view = array.view;
  if (dtype && *dtype == "s4") {
    check_rank(kOp, "codes", view, 2);
    check_dtype(kOp, "codes", view, {DType::u8});
    check_rows(kOp, "codes", view);
    view = {view.data(), DType::s4, {view.size(0), 2 * view.size(1)}, {2 * view.stride(0), 1}};
  } else if (dtype && *dtype != dtype_name(view.dtype())) {
    invalid(kOp, fmt::format("dtype is '{}', must be 's4' or that of codes, {}", *dtype, dtype_name(view.dtype())));
  }
  const std::optional<Input> scale_array = import_input(kOp, "scales", scales),
                             zero_array = import_input(kOp, "zeros", zeros);
  IntegerWeightOptions options{.group_len = group_len};
  if (scale_array) options.scales = scale_array->view;
  if (zero_array) options.zeros = zero_array->view;
  const nb::gil_scoped_release released;
  return PackedWeights::pack_integers(context_or_default(context), view, options);
}

PackedWeights stack(const std::vector<ArrayArgument>& weights, const std::optional<std::string>& dtype,
                    Context* context) {
  std::vector<Input> arrays;
  std::vector<ConstTensorView> views;
  for (const ArrayArgument& weight : weights) {
    const std::string name = fmt::format("weights[{}]", arrays.size());
    arrays.push_back(import_input("PackedWeights", name, weight));
    views.push_back(as_weight(name, arrays.back().view, dtype));
  }
  const nb::gil_scoped_release released;
  return PackedWeights::pack(context_or_default(context), views);
}

PackedWeights pack_gate_up(const ArrayArgument& gate, const ArrayArgument& up, const std::optional<std::string>& dtype,
                           Context* context) {
  const Input gates = import_input("PackedWeights", "gate", gate), ups = import_input("PackedWeights", "up", up);
  const ConstTensorView gate_view = as_weight("gate", gates.view, dtype), up_view = as_weight("up", ups.view, dtype);
  const nb::gil_scoped_release released;
  return PackedWeights::pack_gate_up(context_or_default(context), gate_view, up_view);
}

void save(const PackedWeights& self, const std::string& path) {
  const nb::gil_scoped_release released;
  self.save(path);
}
PackedWeights load(const std::string& path) {
  const nb::gil_scoped_release released;
  return PackedWeights::load(path);
}

std::vector<std::int64_t> with_last_dim(std::span<const std::int64_t> shape, std::int64_t last) {
  std::vector<std::int64_t> result(shape.begin(), shape.end());
  if (!result.empty()) result.back() = last;
  return result;
}

std::vector<std::int64_t> broadcast(const ConstTensorView& a, const ConstTensorView& b, bool transpose_b) {
  const int rank = std::max({a.rank(), b.rank(), 2});
  std::vector<std::int64_t> shape(std::size_t(rank), 1);
  for (const ConstTensorView* view : {&a, &b}) {
    for (int i = 0; i + 2 < view->rank(); ++i) {
      std::int64_t& size = shape[std::size_t(i + rank - view->rank())];
      if (size == 1) size = view->size(i);
    }
  }
  if (a.rank() >= 2) shape[std::size_t(rank) - 2] = a.size(a.rank() - 2);
  if (b.rank() >= 2) shape[std::size_t(rank) - 1] = b.size(b.rank() - (transpose_b ? 2 : 1));
  return shape;
}

ArrayOfKind run_matmul(const ArrayOfKind& a, const ArrayArgument& b, const std::optional<ArrayArgument>& bias,
                       const std::string& activation, const std::optional<ArrayArgument>& residual,
                       const std::optional<ArrayOfKind>& out, bool transpose_b, int a_zero, int b_zero, bool exact,
                       Context* context) {
  constexpr std::string_view kOp = "matmul";
  const Input left = import_input(kOp, "a", a), right = import_input(kOp, "b", b);
  const std::optional<Input> biases = import_input(kOp, "bias", bias), added = import_input(kOp, "residual", residual);
  MatmulOptions options{.transpose_b = transpose_b,
                        .activation = activation_from_name(kOp, activation),
                        .arithmetic = exact ? Arithmetic::exact : Arithmetic::fast,
                        .a_zero = a_zero,
                        .b_zero = b_zero};
  if (biases) options.bias = biases->view;
  if (added) options.residual = added->view;
  const DType dtype = is_float(left.view.dtype()) ? left.view.dtype() : DType::i32;
  const Output result = output_or_new(kOp, "out", out, left, dtype, broadcast(left.view, right.view, transpose_b));
  {
    const nb::gil_scoped_release released;
    matmul(context_or_default(context), left.view, right.view, result.view, options);
  }
  return ArrayOfKind(result.source);
}

std::optional<DType> dtype_argument(std::string_view operation, const std::optional<std::string>& name) {
  if (!name) return std::nullopt;
  for (int i = 0; i < kNumDTypes; ++i) {
    if (dtype_name(DType(i)) == *name) return DType(i);
  }
  invalid(operation, fmt::format("out_dtype is '{}', must name a dtype such as 'f32'", *name));
}

// Of a fresh result: floats stay what they are, integers give f32.
DType result_dtype(std::string_view operation, const Input& x, const std::optional<std::string>& name) {
  const auto asked = dtype_argument(operation, name);
  return asked ? *asked : is_float(x.view.dtype()) ? x.view.dtype() : DType::f32;
}

ArrayOfKind run_linear(const ArrayOfKind& x, const PackedWeights& weights, const std::optional<ArrayArgument>& bias,
                       const std::string& activation, const std::optional<ArrayArgument>& residual,
                       const std::optional<ArrayOfKind>& out, bool exact, const std::optional<ArrayArgument>& x_rows,
                       const std::optional<ArrayArgument>& x_scales, int x_zero,
                       const std::optional<ArrayArgument>& row_scales, float out_scale, int out_zero,
                       const std::optional<ArrayArgument>& out_rows, const std::optional<std::string>& out_dtype,
                       Context* context) {
  constexpr std::string_view kOp = "linear";
  const Input input = import_input(kOp, "x", x);
  const std::optional<Input> biases = import_input(kOp, "bias", bias), added = import_input(kOp, "residual", residual),
                             ids = import_input(kOp, "x_rows", x_rows),
                             scales = import_input(kOp, "x_scales", x_scales),
                             factors = import_input(kOp, "row_scales", row_scales),
                             targets = import_input(kOp, "out_rows", out_rows);
  LinearOptions options{.activation = activation_from_name(kOp, activation),
                        .arithmetic = exact ? Arithmetic::exact : Arithmetic::fast};
  if (biases) options.bias = biases->view;
  if (ids) options.x_rows = ids->view;
  if (scales) options.x_scales = scales->view;
  if (factors) options.row_scales = factors->view;
  if (targets) options.out_rows = targets->view;
  options.x_zero = x_zero;
  options.out_scale = out_scale;
  options.out_zero = out_zero;
  auto shape = with_last_dim(input.view.shape(), weights.num_outputs());
  // What counts rows takes one matrix.
  const bool one_matrix = ids || targets || factors || (scales && scales->view.num_elements() != 1);
  if (one_matrix) {
    check_rank(kOp, "x", input.view, 2);
    if (ids) {
      check_rank(kOp, "x_rows", ids->view, 1);
      shape[0] = ids->view.size(0);
    }
    if (targets && !out) invalid(kOp, "out_rows is given, so out must be, which rows are added to");
  }
  const Output result = output_or_new(kOp, "out", out, input, result_dtype(kOp, input, out_dtype), shape);
  if (!targets) check_same_shape(kOp, "out", result.view, shape);
  if (added) check_same_shape(kOp, "residual", added->view, shape);
  if (one_matrix) {
    if (added) options.residual = added->view;
    const nb::gil_scoped_release released;
    linear(context_or_default(context), input.view, weights, result.view, options);
    return ArrayOfKind(result.source);
  }
  const Matrices matrices(kOp, "x", input.view.shape(),
                          {input.view, result.view, added ? added->view : ConstTensorView(result.view)});
  {
    const nb::gil_scoped_release released;
    for (std::int64_t i = 0; i < matrices.count(); ++i) {
      if (added) options.residual = matrices.at(added->view, i);
      linear(context_or_default(context), matrices.at(input.view, i), weights, matrices.at(result.view, i), options);
    }
  }
  return ArrayOfKind(result.source);
}

ArrayOfKind run_gated_linear(const ArrayOfKind& x, const PackedWeights& gate_up, const std::string& activation,
                             const std::optional<ArrayOfKind>& out, bool exact, Context* context) {
  constexpr std::string_view kOp = "gated_linear";
  const Input input = import_input(kOp, "x", x);
  const auto shape = with_last_dim(input.view.shape(), gate_up.num_gated_outputs());
  const Output result = output_or_new(kOp, "out", out, input, input.view.dtype(), shape);
  check_same_shape(kOp, "out", result.view, shape);
  const GatedLinearOptions options{.activation = activation_from_name(kOp, activation),
                                   .arithmetic = exact ? Arithmetic::exact : Arithmetic::fast};
  const Matrices matrices(kOp, "x", input.view.shape(), {input.view, result.view});
  {
    const nb::gil_scoped_release released;
    for (std::int64_t i = 0; i < matrices.count(); ++i) {
      gated_linear(context_or_default(context), matrices.at(input.view, i), gate_up, matrices.at(result.view, i),
                   options);
    }
  }
  return ArrayOfKind(result.source);
}

}  // namespace

void bind_gemm(nb::module_& module) {
  nb::class_<PackedWeights>(module, "PackedWeights", R"(Weights of a matmul in the order in which its kernels read them.

weight [num_outputs, num_inputs] f32, bf16 or f16; or, with dtype 'q4_0', 'q4_1', 'q5_0', 'q5_1',
'q8_0', 'q2_k', 'q3_k', 'q4_k', 'q5_k' or 'q6_k', its rows of GGUF blocks as uint8 [num_outputs, bytes
of a row]. Immutable; any number of threads may use one.)")
      .def("__init__", &construct_weights, "weight"_a, "dtype"_a = nb::none(), "context"_a = nb::none())
      .def_static("stack", &stack, "weights"_a, "dtype"_a = nb::none(), "context"_a = nb::none(),
                  "Weights one below the other, q, k and v in one matmul; all but the last have a multiple of 16 "
                  "outputs.")
      .def_static("integers", &pack_integers, "codes"_a, "scales"_a = nb::none(), "zeros"_a = nb::none(),
                  "group_len"_a = 0, "dtype"_a = nb::none(), "context"_a = nb::none(),
                  R"(Integer weights: scale * (code - zero).

codes [num_outputs, num_inputs] int8 or uint8; with dtype 's4' [num_outputs, num_inputs / 2] uint8, two
signed codes to a byte, the even index in the low bits. scales [num_outputs, num_groups] f32, bf16 or
f16 (none: 1), zeros the same in the dtype of the codes (s4: int8); a group is group_len inputs: 32, 64,
128, 256 or 0, all of them.)")
      .def_static("gate_up", &pack_gate_up, "gate"_a, "up"_a, "dtype"_a = nb::none(), "context"_a = nb::none(),
                  "Two weights of one shape, for gated_linear.")
      .def("save", &save, "path"_a, "Writes them as they are packed; load gives them back without packing.")
      .def_static("load", &load, "path"_a, "What save wrote; InvalidFile where the file isn't whole.")
      .def_prop_ro("dtype", [](const PackedWeights& self) { return dtype_name(self.dtype()); })
      .def_prop_ro("num_outputs", &PackedWeights::num_outputs)
      .def_prop_ro("num_inputs", &PackedWeights::num_inputs)
      .def_prop_ro("num_gated_outputs", &PackedWeights::num_gated_outputs, "Of gate_up; else 0.")
      .def_prop_ro(
          "group_len", [](const PackedWeights& self) { return self.scaling().group_len; },
          "Inputs that share a scale of integer weights; 0: all.")
      .def_prop_ro("nbytes", &PackedWeights::bytes);
  module.def("dequantise", &run_dequantise, "blocks"_a, "dtype"_a, "out"_a = nb::none(),
             R"(The values that GGUF blocks stand for, bit for bit those of gguf.dequantize.

blocks uint8 [rows, bytes of a row], dtype their type ('q4_k', as for PackedWeights); out
[rows, elements of a row] f32.)");
  module.def("linear", &run_linear, "x"_a, "weights"_a, "bias"_a = nb::none(), "activation"_a = "none",
             "residual"_a = nb::none(), "out"_a = nb::none(), nb::kw_only(), "exact"_a = false, "x_rows"_a = nb::none(),
             "x_scales"_a = nb::none(), "x_zero"_a = 0, "row_scales"_a = nb::none(), "out_scale"_a = 1.0f,
             "out_zero"_a = 0, "out_rows"_a = nb::none(), "out_dtype"_a = nb::none(), "context"_a = nb::none(),
             R"(row_scales * activation(x weights^T + bias) + residual.

x [..., num_inputs] f32, bf16 or f16, last dimension contiguous; bias [num_outputs] f32; residual and
out [..., num_outputs], residual as out, which is f32, bf16 or f16 (fresh: as x). activation: 'none',
'relu', 'silu', 'gelu_tanh', 'gelu_erf' or 'gelu_fast' (x * sigmoid(1.702 x)). With weights below f32
the activations are rounded too, to bf16, to int8 in blocks of 32, or for integer weights to int8 in
their groups, unless exact asks for f32 products. Sums are f32.

x may be int8 or uint8 codes that stand for x_scales * (code - x_zero), x_scales [1] or [rows] f32; with
integer weights out int32 then gives the integer sums. For float x and integer weights x_scales is a
static scale. out int8 or uint8: the code nearest y / out_scale + out_zero. x_rows [rows] int32 gathers
rows of x, row_scales [rows] f32 multiplies rows, out_rows [rows] int32 adds row r to row out_rows[r] of
out (dropped below 0): with these, x is one matrix. A fresh out is of out_dtype ('f32', 's8', 'i32', ...).)");
  module.def("matmul", &run_matmul, "a"_a, "b"_a, "bias"_a = nb::none(), "activation"_a = "none",
             "residual"_a = nb::none(), "out"_a = nb::none(), nb::kw_only(), "transpose_b"_a = false, "a_zero"_a = 0,
             "b_zero"_a = 0, "exact"_a = false, "context"_a = nb::none(),
             R"(activation(a b + bias) + residual, leading dimensions broadcast as numpy.matmul does.

a [..., M, K] and b [..., K, N] (transpose_b: [..., N, K]) f32, bf16 or f16 in any strides; out
[..., M, N], its last dimension contiguous (fresh: dtype of a). With a and b int8 or uint8, out is int32:
the sums of (a - a_zero) (b - b_zero). exact as for linear. b is packed on every call: for weights that
are used again, PackedWeights and linear.)");
  module.def("gated_linear", &run_gated_linear, "x"_a, "gate_up"_a, "activation"_a = "silu", "out"_a = nb::none(),
             nb::kw_only(), "exact"_a = false, "context"_a = nb::none(),
             R"(Gated linear unit (Shazeer, 2020): activation(x gate^T) * (x up^T), SwiGLU with 'silu'.

x [..., num_inputs]; gate_up of PackedWeights.gate_up; out [..., num_gated_outputs]. Types as for
linear.)");
}

}  // namespace ops_transformer::python
