// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/kv_cache/kv_pool.h"

#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ops_transformer/base/validate.h"
#include "ops_transformer/kv_cache/kv_write.h"
#include "python/array.h"
#include "python/bindings.h"

namespace ops_transformer::python {
namespace {

using namespace nb::literals;

constexpr std::string_view kOp = "KvPool";

using Int64Array = nb::ndarray<nb::numpy, std::int64_t, nb::ndim<1>>;
using Int32Matrix = nb::ndarray<nb::numpy, std::int32_t, nb::ndim<2>>;

/// A NumPy array that owns `values`.
template <class Array, class T>
Array owned(std::vector<T> values, std::initializer_list<std::size_t> shape) {
  auto* kept = new std::vector<T>(std::move(values));
  const nb::capsule owner(kept, [](void* pointer) noexcept { delete static_cast<std::vector<T>*>(pointer); });
  return Array(kept->data(), shape, owner);
}
Int64Array owned_slots(std::vector<std::int64_t> slots) {
  const std::size_t count = slots.size();
  return owned<Int64Array>(std::move(slots), {count});
}

DType dtype_from_name(const std::string& name) {
  for (int i = 0; i < kNumDTypes; ++i) {
    if (dtype_name(DType(i)) == name) return DType(i);
  }
  invalid(kOp, fmt::format("dtype is '{}', must be 'f32' or 'bf16'", name));
}

void construct(KvPool* self, std::int64_t num_layers, std::int64_t num_kv_heads, std::int64_t head_dim,
               std::int64_t num_pages, std::optional<std::int64_t> value_dim, std::int64_t page_size,
               const std::string& dtype) {
  if (value_dim && *value_dim < 1) invalid(kOp, fmt::format("value_dim is {}, must be at least 1", *value_dim));
  new (self)
      KvPool({num_layers, num_kv_heads, head_dim, value_dim.value_or(0), page_size, num_pages, dtype_from_name(dtype)});
}

std::vector<std::int64_t> room_for(std::int64_t num_tokens) {
  if (num_tokens < 0 || num_tokens > (std::int64_t{1} << 40)) {
    invalid(kOp, fmt::format("num_tokens is {}, must be from 0 to 2^40", num_tokens));
  }
  return std::vector<std::int64_t>(std::size_t(num_tokens));
}

Int64Array append(KvPool& self, SequenceId id, std::int64_t num_tokens) {
  self.reserve(id, num_tokens);  // what can't be had is refused before it sizes an array
  auto slots = room_for(num_tokens);
  self.append(id, slots);
  return owned_slots(std::move(slots));
}

Int64Array slots_of(const KvPool& self, SequenceId id, std::int64_t first, std::optional<std::int64_t> num_tokens) {
  const std::int64_t left = self.length(id) - first;
  if (num_tokens.value_or(0) > left) {
    invalid(kOp, fmt::format("num_tokens is {}, the sequence has {} from token {} on", *num_tokens, left, first));
  }
  auto slots = room_for(num_tokens.value_or(left));
  self.slots(id, first, slots);
  return owned_slots(std::move(slots));
}

nb::object pages_of(nb::handle pool, const TensorView& view) {
  const std::size_t shape[4] = {std::size_t(view.size(0)), std::size_t(view.size(1)), std::size_t(view.size(2)),
                                std::size_t(view.size(3))};
  const std::int64_t strides[4] = {view.stride(0), view.stride(1), view.stride(2), view.stride(3)};
  const bool f32 = view.dtype() == DType::f32;
  const nb::dlpack::dtype type{std::uint8_t(f32 ? nb::dlpack::dtype_code::Float : nb::dlpack::dtype_code::UInt),
                               std::uint8_t(f32 ? 32 : 16), 1};
  return nb::cast(nb::ndarray<nb::numpy>(view.data(), 4, shape, pool, strides, type, nb::device::cpu::value));
}

std::pair<ArrayArgument, ArrayArgument> pages(nb::handle_t<KvPool> pool, std::int64_t layer) {
  const KvPages both = nb::cast<const KvPool&>(pool).pages(layer);
  return {nb::borrow<ArrayArgument>(pages_of(pool, both.k)), nb::borrow<ArrayArgument>(pages_of(pool, both.v))};
}

nb::dict tables(const KvPool& self, const std::vector<SequenceId>& ids) {
  const PagedKvView view = self.view(0, ids);
  std::int64_t longest = 1;
  for (const PagedSequence& sequence : view.sequences) longest = std::max(longest, sequence.table_len);
  std::vector<std::int32_t> table(ids.size() * std::size_t(longest), -1);
  std::vector<std::int64_t> lengths;
  for (std::size_t b = 0; b < ids.size(); ++b) {
    const PagedSequence& sequence = view.sequences[b];
    std::copy_n(sequence.pages, sequence.table_len, table.begin() + std::ptrdiff_t(b) * longest);
    lengths.push_back(sequence.kv_len);
  }
  nb::dict result;
  result["page_table"] = owned<Int32Matrix>(std::move(table), {ids.size(), std::size_t(longest)});
  result["kv_lens"] = owned_slots(std::move(lengths));
  return result;
}

void write(KvPool& self, std::int64_t layer, const ArrayArgument& slots, const ArrayArgument& key,
           const ArrayArgument& value, Context* context) {
  constexpr std::string_view kWrite = "KvPool.write";
  const Input at = import_input(kWrite, "slots", slots), k = import_input(kWrite, "key", key),
              v = import_input(kWrite, "value", value);
  check_rank(kWrite, "slots", at.view, 1);
  check_dtype(kWrite, "slots", at.view, {DType::i64});
  std::vector<std::int64_t> copied(std::size_t(at.view.size(0)));
  for (std::size_t i = 0; i < copied.size(); ++i) {
    copied[i] = at.view.as<std::int64_t>()[std::int64_t(i) * at.view.stride(0)];
  }
  const KvPages into = self.pages(layer);
  const nb::gil_scoped_release released;
  kv_write(context_or_default(context), k.view, v.view, copied, into);
}

}  // namespace

void bind_kv_pool(nb::module_& module) {
  nb::class_<KvPool>(module, "KvPool", R"(Keys and values of sequences of any lengths, in pages of one pool.

num_pages pages hold page_size tokens of every layer each: keys [num_kv_heads, page_size, head_dim],
values with value_dim (None: head_dim), 'f32' or 'bf16'. Sequences made by fork share pages until one
of them writes. Attention reads it in place: flash_attention_paged(q, *pool.pages(layer),
**pool.tables(ids), q_offsets=...). Raises ValueError for an id, layer or token that is not there.
Not for two threads at once.)")
      .def("__init__", &construct, "num_layers"_a, "num_kv_heads"_a, "head_dim"_a, "num_pages"_a, nb::kw_only(),
           "value_dim"_a = nb::none(), "page_size"_a = 64, "dtype"_a = "bf16")
      .def_prop_ro("num_free_pages", &KvPool::num_free_pages)
      .def_prop_ro("num_sequences", &KvPool::num_sequences)
      .def("add_sequence", &KvPool::add_sequence, "An empty sequence; its id.")
      .def("remove_sequence", &KvPool::remove_sequence, "id"_a)
      .def("fork", &KvPool::fork, "id"_a, "A new sequence with the same tokens, pages shared; its id.")
      .def("length", &KvPool::length, "id"_a, "Tokens in the sequence.")
      .def("reserve", &KvPool::reserve, "id"_a, "num_tokens"_a,
           "Room for num_tokens more. Raises ResourceExhausted where pages run out; then nothing has changed.")
      .def("append", &append, "id"_a, "num_tokens"_a,
           "Lengthens the sequence; the slots of the new tokens, for write. Raises as reserve.")
      .def("truncate", &KvPool::truncate, "id"_a, "new_length"_a, "Drops the tokens from new_length on.")
      .def("slots", &slots_of, "id"_a, "first"_a = 0, "num_tokens"_a = nb::none(),
           "Slots of tokens that are in the sequence; None: all from `first` on.")
      .def("write", &write, "layer"_a, "slots"_a, "key"_a, "value"_a, "context"_a = nb::none(),
           R"(Writes rows to slots (-1: skipped): key [tokens, num_kv_heads, head_dim], value with value_dim, f32 or
bf16, converted to the pool's type.)")
      .def("pages", &pages, "layer"_a,
           R"(The pages of a layer, without a copy: keys [num_pages, num_kv_heads, page_size,
head_dim] and values; bf16 as its bits, uint16.)")
      .def("tables", &tables, "ids"_a,
           R"(What flash_attention_paged asks for: {"page_table": int32 [sequences, pages of the
longest], "kv_lens": int64 [sequences]}, as of now.)");
}

}  // namespace ops_transformer::python
