// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>

#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "ops_transformer/base/validate.h"
#include "ops_transformer/block/attention_block.h"
#include "ops_transformer/block/ffn_block.h"
#include "python/activation.h"
#include "python/array.h"
#include "python/bindings.h"
#include "python/rope_table.h"

namespace ops_transformer::python {
namespace {

using namespace nb::literals;

constexpr std::string_view kAttention = "fused_attention_block";

/// Keys and values of one layer for a fixed batch of sequences that grow together.
class AttentionCache {
 public:
  AttentionCache(std::int64_t batch, std::int64_t max_len, std::int64_t num_kv_heads, std::int64_t head_dim,
                 std::int64_t value_dim, DType dtype)
      : max_len_(checked(batch, max_len)),
        pool_({.num_layers = 1,
               .num_kv_heads = num_kv_heads,
               .head_dim = head_dim,
               .value_dim = value_dim,
               .page_size = kPageSize,
               .num_pages = batch * ((max_len + kPageSize - 1) / kPageSize),
               .dtype = dtype}) {
    for (std::int64_t b = 0; b < batch; ++b) ids_.push_back(pool_.add_sequence());
  }

  std::int64_t batch() const { return std::int64_t(ids_.size()); }
  std::int64_t max_len() const { return max_len_; }
  std::int64_t length() const { return pool_.length(ids_[0]); }
  void truncate(std::int64_t length) {
    for (SequenceId id : ids_) pool_.truncate(id, length);
  }

  /// Slots of num_tokens more tokens of each sequence, one sequence after another.
  std::vector<std::int64_t> append(std::int64_t num_tokens) {
    if (num_tokens > max_len_ - length()) {
      throw ResourceExhausted(fmt::format("{}: kv_cache holds {} of {} tokens, no room for {} more", kAttention,
                                          length(), max_len_, num_tokens));
    }
    std::vector<std::int64_t> slots(std::size_t(batch() * num_tokens));
    for (std::size_t b = 0; b < ids_.size(); ++b) {
      pool_.append(ids_[b], std::span(slots).subspan(b * std::size_t(num_tokens), std::size_t(num_tokens)));
    }
    return slots;
  }
  KvPages pages() const { return pool_.pages(0); }
  PagedKvView view() const { return pool_.view(0, ids_); }

 private:
  static constexpr std::int64_t kPageSize = 64;
  static std::int64_t checked(std::int64_t batch, std::int64_t max_len) {
    if (batch < 1 || batch > 65536) invalid("AttentionCache", fmt::format("batch is {}, must be 1...65536", batch));
    if (max_len < 1 || max_len > std::int64_t{1} << 30) {
      invalid("AttentionCache", fmt::format("max_len is {}, must be 1...2^30", max_len));
    }
    return max_len;
  }

  std::int64_t max_len_;
  KvPool pool_;
  std::vector<SequenceId> ids_;
};

/// Gone again where a call throws, so that a cache is as it was.
class Appended {
 public:
  Appended(AttentionCache& cache, std::int64_t num_tokens)
      : cache_(cache), before_(cache.length()), slots_(cache.append(num_tokens)) {}
  ~Appended() {
    if (!kept_) cache_.truncate(before_);
  }
  Appended(const Appended&) = delete;
  Appended& operator=(const Appended&) = delete;
  std::span<const std::int64_t> slots() const { return slots_; }
  void keep() { kept_ = true; }

 private:
  AttentionCache& cache_;
  std::int64_t before_;
  std::vector<std::int64_t> slots_;
  bool kept_ = false;
};

DType cache_dtype(const std::string& name) {
  if (name == "bf16") return DType::bf16;
  if (name == "f32") return DType::f32;
  invalid("AttentionCache", fmt::format("dtype is '{}', must be 'bf16' or 'f32'", name));
}

AttentionWeights pack(const ArrayArgument& wq, const ArrayArgument& wk, const ArrayArgument& wv,
                      const ArrayArgument& wo, std::int64_t num_heads, std::int64_t num_kv_heads, std::int64_t head_dim,
                      bool interleaved, Context* context) {
  constexpr std::string_view kOp = "AttentionWeights";
  const Input q = import_input(kOp, "wq", wq), k = import_input(kOp, "wk", wk), v = import_input(kOp, "wv", wv),
              o = import_input(kOp, "wo", wo);
  const std::int64_t value_dim = v.view.rank() == 2 && num_kv_heads > 0 ? v.view.size(0) / num_kv_heads : 0;
  const nb::gil_scoped_release released;
  return AttentionWeights::pack(context_or_default(context), q.view, k.view, v.view, o.view,
                                {.num_q_heads = num_heads,
                                 .num_kv_heads = num_kv_heads,
                                 .head_dim = head_dim,
                                 .value_dim = value_dim,
                                 .rope_style = interleaved ? RopeStyle::interleaved : RopeStyle::half_split});
}

std::optional<RowNorm> norm_of(const std::optional<Input>& weight, const std::optional<Input>& bias, float eps,
                               float weight_offset, std::string_view op) {
  if (!weight) {
    if (bias) invalid(op, "ln_bias is given without ln_weight");
    return std::nullopt;
  }
  RowNorm norm{.kind = bias ? NormKind::layer : NormKind::rms,
               .weight = weight->view,
               .eps = eps,
               .weight_offset = weight_offset};
  if (bias) norm.bias = bias->view;
  return norm;
}

/// [..., seq, hidden] as rows, all sequences one after another; the leading dimensions have to merge.
template <class View>
View rows_of(std::string_view op, std::string_view name, const View& view) {
  const int rank = view.rank();
  std::int64_t rows = 1, stride = rank >= 2 ? view.stride(rank - 2) : 0, expected = 0;
  for (int dim = rank - 2; dim >= 0; --dim) {
    rows *= view.size(dim);
    if (view.size(dim) == 1) continue;
    if (expected != 0 && view.stride(dim) != expected) {
      invalid(op, fmt::format("rows of {} must be one stride apart, got {}", name, describe(view)));
    }
    if (expected == 0) stride = view.stride(dim);
    expected = view.stride(dim) * view.size(dim);
  }
  return View(view.data(), view.dtype(), {rows, view.size(rank - 1)}, {stride, view.stride(rank - 1)});
}

std::vector<std::int64_t> positions_of(const Input& positions, std::int64_t batch, std::int64_t seq) {
  const ConstTensorView& at = positions.view;
  if (at.rank() == 2) {
    check_shape(kAttention, "positions", at, {batch, seq});
  } else {
    check_shape(kAttention, "positions", at, {seq});
  }
  check_dtype(kAttention, "positions", at, {DType::i32, DType::i64});
  std::vector<std::int64_t> all;
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t t = 0; t < seq; ++t) {
      const std::int64_t i = (at.rank() == 2 ? b * at.stride(0) : 0) + t * at.stride(at.rank() - 1);
      all.push_back(at.dtype() == DType::i32 ? at.as<std::int32_t>()[i] : at.as<std::int64_t>()[i]);
    }
  }
  return all;
}

ArrayOfKind run_attention(const ArrayOfKind& x, const AttentionWeights& weights,
                          const std::optional<ArrayArgument>& ln_weight, bool residual_connection,
                          const std::optional<ArrayArgument>& positions, AttentionCache* kv_cache,
                          const std::optional<ArrayOfKind>& out, const std::optional<ArrayArgument>& ln_bias, float eps,
                          float weight_offset, std::optional<std::int64_t> rotary_dim, double theta,
                          const std::optional<AnyScaling>& scaling, bool causal, std::optional<float> softmax_scale,
                          std::optional<std::int64_t> window, float logit_soft_cap, bool exact, Context* context) {
  const Input input = import_input(kAttention, "x", x);
  const auto shape = input.view.shape();
  if (shape.size() != 2 && shape.size() != 3) {
    invalid(kAttention, fmt::format("x must be [batch, seq, hidden] or [seq, hidden], got {}", describe(input.view)));
  }
  const std::int64_t batch = shape.size() == 3 ? shape[0] : 1, seq = shape[shape.size() - 2];
  const std::optional<Input> gains = import_input(kAttention, "ln_weight", ln_weight),
                             shift = import_input(kAttention, "ln_bias", ln_bias),
                             at = import_input(kAttention, "positions", positions);
  const Output result = output_or_new(kAttention, "out", out, input, input.view.dtype(), shape);
  check_same_shape(kAttention, "out", result.view, shape);
  AttentionBlockOptions options{.norm = norm_of(gains, shift, eps, weight_offset, kAttention),
                                .residual_connection = residual_connection,
                                .causal = causal,
                                .softmax_scale = softmax_scale,
                                .window = window.value_or(kNoWindow),
                                .logit_soft_cap = logit_soft_cap,
                                .arithmetic = exact ? Arithmetic::exact : Arithmetic::fast};
  const AttentionShape& heads = weights.shape();
  std::shared_ptr<const RopeTable> table;
  std::vector<std::int64_t> all_positions, offsets;
  if (at) {
    all_positions = positions_of(*at, batch, seq);
    table = table_for({.rotary_dim = rotary_dim.value_or(heads.head_dim),
                       .theta = theta,
                       .style = heads.rope_style,
                       .scaling = scaling_of(scaling)});
    options.rope = table.get();
    options.positions = ConstTensorView(all_positions.data(), DType::i64, {std::int64_t(all_positions.size())});
  }
  for (std::int64_t b = 0; b <= batch; ++b) offsets.push_back(b * seq);
  options.offsets = offsets;
  const ConstTensorView rows = rows_of(kAttention, "x", input.view);
  const TensorView out_rows = rows_of(kAttention, "out", result.view);
  if (kv_cache && kv_cache->batch() != batch) {
    invalid(kAttention, fmt::format("kv_cache has a batch of {}, must have {}", kv_cache->batch(), batch));
  }
  {
    const nb::gil_scoped_release released;
    if (!kv_cache) {
      attention_block(context_or_default(context), rows, weights, out_rows, options);
    } else {
      Appended appended(*kv_cache, seq);
      const KvPages pages = kv_cache->pages();
      const PagedKvView view = kv_cache->view();
      options.pages = &pages;
      options.slots = appended.slots();
      options.cache = &view;
      attention_block(context_or_default(context), rows, weights, out_rows, options);
      appended.keep();
    }
  }
  return ArrayOfKind(result.source);
}

ArrayOfKind run_ffn(const ArrayOfKind& x, const PackedWeights& gate_up, const PackedWeights& down,
                    const std::optional<ArrayArgument>& ln_weight, bool residual_connection,
                    const std::string& activation, const std::optional<ArrayOfKind>& out,
                    const std::optional<ArrayArgument>& ln_bias, float eps, float weight_offset, bool exact,
                    Context* context) {
  constexpr std::string_view kOp = "fused_ffn_block";
  const Input input = import_input(kOp, "x", x);
  const auto shape = input.view.shape();
  const std::optional<Input> gains = import_input(kOp, "ln_weight", ln_weight),
                             shift = import_input(kOp, "ln_bias", ln_bias);
  const Output result = output_or_new(kOp, "out", out, input, input.view.dtype(), shape);
  check_same_shape(kOp, "out", result.view, shape);
  const FfnBlockOptions options{.norm = norm_of(gains, shift, eps, weight_offset, kOp),
                                .residual_connection = residual_connection,
                                .activation = activation_from_name(kOp, activation),
                                .arithmetic = exact ? Arithmetic::exact : Arithmetic::fast};
  const Matrices matrices(kOp, "x", shape, {input.view, result.view});
  {
    const nb::gil_scoped_release released;
    for (std::int64_t i = 0; i < matrices.count(); ++i) {
      ffn_block(context_or_default(context), matrices.at(input.view, i), gate_up, down, matrices.at(result.view, i),
                options);
    }
  }
  return ArrayOfKind(result.source);
}

}  // namespace

void bind_block(nb::module_& module) {
  nb::class_<AttentionWeights>(module, "AttentionWeights", R"(The four matrices of an attention sublayer, packed once.

wq [num_heads * head_dim, hidden], wk [num_kv_heads * head_dim, hidden], wv [num_kv_heads * value_dim,
hidden], wo [hidden, num_heads * value_dim], f32, bf16 or f16; queries, keys and values become one
matmul. interleaved: the pairs that will be rotated are (2i, 2i + 1), else (i, i + head_dim / 2).)")
      .def(
          "__init__",
          [](AttentionWeights* self, const ArrayArgument& wq, const ArrayArgument& wk, const ArrayArgument& wv,
             const ArrayArgument& wo, std::int64_t num_heads, std::optional<std::int64_t> num_kv_heads,
             std::int64_t head_dim, bool interleaved, Context* context) {
            new (self) AttentionWeights(
                pack(wq, wk, wv, wo, num_heads, num_kv_heads.value_or(num_heads), head_dim, interleaved, context));
          },
          "wq"_a, "wk"_a, "wv"_a, "wo"_a, "num_heads"_a, "num_kv_heads"_a = nb::none(), nb::kw_only(), "head_dim"_a,
          "interleaved"_a = false, "context"_a = nb::none())
      .def_prop_ro("num_heads", [](const AttentionWeights& self) { return self.shape().num_q_heads; })
      .def_prop_ro("num_kv_heads", [](const AttentionWeights& self) { return self.shape().num_kv_heads; })
      .def_prop_ro("head_dim", [](const AttentionWeights& self) { return self.shape().head_dim; })
      .def_prop_ro("value_dim", [](const AttentionWeights& self) { return self.shape().value_dim; })
      .def_prop_ro("nbytes", &AttentionWeights::bytes);
  nb::class_<AttentionCache>(module, "AttentionCache", R"(Keys and values of one layer, for fused_attention_block.

A fixed batch of sequences that grow together, up to max_len tokens each; dtype 'bf16' or 'f32'. Memory
is mapped at once and paid for when first written. Not thread-safe.)")
      .def(
          "__init__",
          [](AttentionCache* self, std::int64_t batch, std::int64_t max_len, std::int64_t num_kv_heads,
             std::int64_t head_dim, std::optional<std::int64_t> value_dim, const std::string& dtype) {
            new (self)
                AttentionCache(batch, max_len, num_kv_heads, head_dim, value_dim.value_or(0), cache_dtype(dtype));
          },
          "batch"_a, "max_len"_a, "num_kv_heads"_a, "head_dim"_a, "value_dim"_a = nb::none(), nb::kw_only(),
          "dtype"_a = "bf16")
      .def("__len__", &AttentionCache::length, "Tokens of each sequence.")
      .def_prop_ro("batch", &AttentionCache::batch)
      .def_prop_ro("max_len", &AttentionCache::max_len)
      .def("truncate", &AttentionCache::truncate, "length"_a, "Drops the tokens from `length` on.");
  module.def("attention_block", &run_attention, "x"_a, "weights"_a, "ln_weight"_a = nb::none(),
             "residual_connection"_a = false, "positions"_a = nb::none(), "kv_cache"_a = nb::none(),
             "out"_a = nb::none(), nb::kw_only(), "ln_bias"_a = nb::none(), "eps"_a.sig("1e-05") = 1e-5f,
             "weight_offset"_a = 0.0f, "rotary_dim"_a = nb::none(), "theta"_a = 10000.0, "scaling"_a = nb::none(),
             "causal"_a = false, "softmax_scale"_a = nb::none(), "window"_a = nb::none(), "logit_soft_cap"_a = 0.0f,
             "exact"_a = false, "context"_a = nb::none(), "See the package's fused_attention_block.");
  module.def("ffn_block", &run_ffn, "x"_a, "gate_up"_a, "down"_a, "ln_weight"_a = nb::none(),
             "residual_connection"_a = false, "activation"_a = "silu", "out"_a = nb::none(), nb::kw_only(),
             "ln_bias"_a = nb::none(), "eps"_a.sig("1e-05") = 1e-5f, "weight_offset"_a = 0.0f, "exact"_a = false,
             "context"_a = nb::none(), "See the package's fused_ffn_block.");
}

}  // namespace ops_transformer::python
