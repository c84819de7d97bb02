// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/gemm/tensor_matmul.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <span>
#include <utility>
#include <vector>

#include "ops_transformer/base/validate.h"
#include "ops_transformer/profiler/profiler.h"

namespace ops_transformer {
namespace {

constexpr const char* kOp = "matmul";

bool is_byte(DType dtype) { return dtype == DType::s8 || dtype == DType::u8; }

struct Shape {
  std::int64_t m, n, k;
  std::vector<std::int64_t> batch;
};

// The strides that walk a tensor over the dimensions of the batch: 0 where it is broadcast.
std::vector<std::int64_t> batch_strides(const ConstTensorView& view, const std::vector<std::int64_t>& batch) {
  std::vector<std::int64_t> strides(batch.size(), 0);
  const int own = view.rank() - 2, more = int(batch.size()) - own;
  for (int i = 0; i < own; ++i) strides[std::size_t(i + more)] = view.size(i) == 1 ? 0 : view.stride(i);
  return strides;
}

void check_zero(const char* name, std::int32_t zero, DType dtype) {
  const std::int32_t low = dtype == DType::s8 ? -128 : 0, high = is_byte(dtype) ? low + 255 : 0;
  if (zero < low || zero > high)
    invalid(kOp, fmt::format("{} is {}, must be from {} to {} for {}", name, zero, is_byte(dtype) ? low : 0, high,
                             dtype_name(dtype)));
}

Shape validate(const ConstTensorView& a, const ConstTensorView& b, const TensorView& out,
               const MatmulOptions& options) {
  for (const auto& [name, view] : {std::pair{"a", a}, std::pair{"b", b}, std::pair{"out", ConstTensorView(out)}}) {
    if (view.rank() < 2)
      invalid(kOp, fmt::format("{} must have at least 2 dimensions, got {}: {}", name, view.rank(), describe(view)));
  }
  check_dtype(kOp, "a", a, {DType::f32, DType::bf16, DType::f16, DType::s8, DType::u8});
  const bool integers = is_byte(a.dtype());
  if (integers) {
    check_dtype(kOp, "b", b, {DType::s8, DType::u8});
    check_dtype(kOp, "out", out, {DType::i32});
    if (options.bias || options.residual || options.activation != Activation::none)
      invalid(kOp, "a and b are integers, which take no bias, activation or residual");
  } else {
    check_dtype(kOp, "b", b, {DType::f32, DType::bf16, DType::f16});
    check_dtype(kOp, "out", out, {DType::f32, DType::bf16, DType::f16});
  }
  check_zero("a_zero", options.a_zero, a.dtype());
  check_zero("b_zero", options.b_zero, b.dtype());
  if (options.activation > kLastActivation)
    invalid(kOp, fmt::format("activation is {}, must be 0...{}", int(options.activation), int(kLastActivation)));
  const int a_rank = a.rank(), b_rank = b.rank();
  Shape shape{a.size(a_rank - 2), b.size(b_rank - (options.transpose_b ? 2 : 1)), a.size(a_rank - 1), {}};
  if (const std::int64_t k = b.size(b_rank - (options.transpose_b ? 1 : 2)); k != shape.k)
    invalid(kOp, fmt::format("b has {} inputs, must have {} as a: {} and {}", k, shape.k, describe(b), describe(a)));
  const int dims = std::max(a_rank, b_rank) - 2;
  for (int i = 0; i < dims; ++i) {
    const int in_a = i - dims + a_rank - 2, in_b = i - dims + b_rank - 2;
    const std::int64_t of_a = in_a < 0 ? 1 : a.size(in_a), of_b = in_b < 0 ? 1 : b.size(in_b);
    if (of_a != of_b && of_a != 1 && of_b != 1)
      invalid(kOp, fmt::format("b can't be broadcast with a: {} and {}", describe(b), describe(a)));
    shape.batch.push_back(of_a == 1 ? of_b : of_a);
  }
  std::vector<std::int64_t> expected = shape.batch;
  expected.insert(expected.end(), {shape.m, shape.n});
  const auto check_same = [&](const char* name, const ConstTensorView& view) {
    if (!std::ranges::equal(view.shape(), expected)) {
      invalid(kOp, fmt::format("{} must be {}, got {}", name,
                               describe(ConstTensorView(nullptr, view.dtype(), expected)), describe(view)));
    }
    check_rows(kOp, name, view);
  };
  check_same("out", out);
  check_output(kOp, "out", out);
  check_no_overlap(kOp, "out", out, "a", a);
  check_no_overlap(kOp, "out", out, "b", b);
  if (options.bias) {
    check_shape(kOp, "bias", *options.bias, {shape.n});
    check_dtype(kOp, "bias", *options.bias, {DType::f32});
    check_rows(kOp, "bias", *options.bias);
    check_no_overlap(kOp, "out", out, "bias", *options.bias);
  }
  if (options.residual) {
    check_same("residual", *options.residual);
    check_dtype(kOp, "residual", *options.residual, {out.dtype()});
    check_in_place_or_apart(kOp, "out", out, "residual", *options.residual);
  }
  PackedWeights::packed_bytes(b.dtype(), shape.n, shape.k);  // throws for sizes past all memory
  return shape;
}

// A walk over the batch, last dimension fastest.
class Batches {
 public:
  explicit Batches(const std::vector<std::int64_t>& sizes) : sizes_(sizes), index_(sizes.size(), 0) {}
  std::int64_t offset(const std::vector<std::int64_t>& strides) const {
    std::int64_t at = 0;
    for (std::size_t i = 0; i < sizes_.size(); ++i) at += index_[i] * strides[i];
    return at;
  }
  bool next() {
    for (std::size_t i = sizes_.size(); i-- > 0;) {
      if (++index_[i] < sizes_[i]) return true;
      index_[i] = 0;
    }
    return false;
  }

 private:
  const std::vector<std::int64_t>& sizes_;
  std::vector<std::int64_t> index_;
};

// Batch and rows are one dimension for all views, their rows being evenly apart.
bool rows_merge(const Shape& shape, std::initializer_list<ConstTensorView> views) {
  for (const ConstTensorView& view : views) {
    if (view.rank() - 2 != int(shape.batch.size())) return false;
    for (int i = 0; i + 2 < view.rank(); ++i) {
      if (view.size(i) != shape.batch[std::size_t(i)]) return false;
      if (view.stride(i) != wrapping_product(view.stride(i + 1), view.size(i + 1))) return false;
    }
  }
  return true;
}

template <class View>
View matrix(const View& view, std::int64_t offset, std::int64_t rows, std::int64_t columns, std::int64_t row_stride,
            std::int64_t column_stride) {
  return View(view.template as<std::byte>() + offset * std::int64_t(element_bytes(view.dtype())), view.dtype(),
              {rows, columns}, {row_stride, column_stride});
}

template <class T>
void copy_rows(const ConstTensorView& from, std::int64_t first, std::int64_t last, std::byte* to) {
  T* out = reinterpret_cast<T*>(to);
  for (std::int64_t r = first; r < last; ++r) {
    const T* row = from.as<T>() + r * from.stride(0);
    for (std::int64_t i = 0; i < from.size(1); ++i) out[r * from.size(1) + i] = row[i * from.stride(1)];
  }
}

// a with contiguous rows.
ConstTensorView with_rows(CallScope& call, const ConstTensorView& a, std::span<std::byte> memory) {
  if (memory.empty()) return a;
  call.parallel_rows(a.size(0), a.size(1), [&](std::int64_t first, std::int64_t last, int) {
    switch (element_bytes(a.dtype())) {
      case 4:
        return copy_rows<std::uint32_t>(a, first, last, memory.data());
      case 2:
        return copy_rows<std::uint16_t>(a, first, last, memory.data());
      default:
        return copy_rows<std::uint8_t>(a, first, last, memory.data());
    }
  });
  return ConstTensorView(memory.data(), a.dtype(), {a.size(0), a.size(1)});
}

}  // namespace

void matmul(Context& context, const ConstTensorView& a, const ConstTensorView& b, const TensorView& out,
            const MatmulOptions& options) {
  Shape shape = validate(a, b, out, options);
  if (out.num_elements() == 0) return;
  const Zone zone(context, kOp, {});
  const int a_rank = a.rank(), b_rank = b.rank(), rank = out.rank();
  const std::int64_t a_row = a.stride(a_rank - 2), out_row = out.stride(rank - 2);
  const ConstTensorView residual = options.residual ? *options.residual : ConstTensorView(out);
  auto a_batch = batch_strides(a, shape.batch), b_batch = batch_strides(b, shape.batch);
  auto out_batch = batch_strides(out, shape.batch), residual_batch = batch_strides(residual, shape.batch);
  if (std::ranges::all_of(b_batch, [](std::int64_t stride) { return stride == 0; }) &&
      rows_merge(shape, {a, out, residual})) {
    for (std::int64_t size : shape.batch) shape.m *= size;
    for (auto* of_batch : {&shape.batch, &a_batch, &b_batch, &out_batch, &residual_batch}) of_batch->clear();
  }
  CallScope call(context);
  const auto packed_memory = call.arena().allocate<std::byte>(std::max<std::size_t>(
      1, PackedWeights::packed_bytes(b.dtype(), shape.n, shape.k, {.has_zeros = options.b_zero != 0})));
  std::span<std::byte> rows_memory;
  if (shape.k > 1 && a.stride(a_rank - 1) != 1)
    rows_memory = call.arena().allocate<std::byte>(std::size_t(shape.m * shape.k) * element_bytes(a.dtype()));
  const std::int64_t b_k = b.stride(b_rank - (options.transpose_b ? 1 : 2)),
                     b_n = b.stride(b_rank - (options.transpose_b ? 2 : 1));
  const std::int8_t zero_bits = std::int8_t(options.b_zero);
  PackedWeights packed;
  std::int64_t packed_offset = -1;
  Batches batches(shape.batch);
  do {
    const std::int64_t b_offset = batches.offset(b_batch);
    if (packed.data() == nullptr || b_offset != packed_offset) {
      const ConstTensorView columns = matrix(b, b_offset, shape.n, shape.k, b_n, b_k);
      if (options.b_zero != 0) {
        packed = PackedWeights::pack_integers(
            context, columns, {.zeros = ConstTensorView(&zero_bits, b.dtype(), {shape.n, 1}, {0, 0})}, packed_memory);
      } else {
        packed = PackedWeights::pack(context, columns, packed_memory);
      }
      packed_offset = b_offset;
    }
    const ConstTensorView rows =
        with_rows(call, matrix(a, batches.offset(a_batch), shape.m, shape.k, a_row, a.stride(a_rank - 1)), rows_memory);
    LinearOptions of_linear{.bias = options.bias, .activation = options.activation, .arithmetic = options.arithmetic};
    of_linear.x_zero = options.a_zero;
    if (options.residual)
      of_linear.residual =
          matrix(residual, batches.offset(residual_batch), shape.m, shape.n, residual.stride(rank - 2), 1);
    linear(context, rows, packed, matrix(out, batches.offset(out_batch), shape.m, shape.n, out_row, 1), of_linear);
  } while (batches.next());
}

}  // namespace ops_transformer
