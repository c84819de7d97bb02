// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <string>
#include <string_view>
#include <utility>

#include "ops_transformer/base/validate.h"
#include "ops_transformer/kv_cache/kv_rms_norm_rope_cache.h"
#include "python/array.h"
#include "python/bindings.h"

namespace ops_transformer::python {
namespace {

using namespace nb::literals;

constexpr std::string_view kOp = "kv_rms_norm_rope_cache";

KvCacheMode mode_of(const std::string& name) {
  constexpr std::pair<std::string_view, KvCacheMode> kModes[] = {{"norm", KvCacheMode::norm},
                                                                 {"pa", KvCacheMode::pa},
                                                                 {"pa_nz", KvCacheMode::pa_nz},
                                                                 {"pa_blk", KvCacheMode::pa_blk},
                                                                 {"pa_blk_nz", KvCacheMode::pa_blk_nz}};
  for (const auto& [known, mode] : kModes) {
    if (known == name) return mode;
  }
  invalid(kOp, fmt::format("mode is '{}', must be 'norm', 'pa', 'pa_nz', 'pa_blk' or 'pa_blk_nz'", name));
}

void run(const ArrayArgument& kv, const ArrayArgument& gamma, const ArrayArgument& cos, const ArrayArgument& sin,
         const ArrayArgument& index, const ArrayArgument& k_cache, const ArrayArgument& c_cache,
         const std::string& mode, float eps, const std::optional<ArrayArgument>& v,
         const std::optional<ArrayArgument>& k_scale, const std::optional<ArrayArgument>& k_offset,
         const std::optional<ArrayArgument>& c_scale, const std::optional<ArrayArgument>& c_offset,
         const std::optional<ArrayArgument>& k_out, const std::optional<ArrayArgument>& c_out, Context* context) {
  const Input rows = import_input(kOp, "kv", kv), gains = import_input(kOp, "gamma", gamma),
              cosines = import_input(kOp, "cos", cos), sines = import_input(kOp, "sin", sin),
              places = import_input(kOp, "index", index);
  const Output k = import_output(kOp, "k_cache", k_cache), c = import_output(kOp, "c_cache", c_cache);
  KvRmsNormRopeCacheOptions options{.mode = mode_of(mode), .eps = eps};
  const std::optional<Input> values = import_input(kOp, "v", v), ks = import_input(kOp, "k_scale", k_scale),
                             ko = import_input(kOp, "k_offset", k_offset), cs = import_input(kOp, "c_scale", c_scale),
                             co = import_input(kOp, "c_offset", c_offset);
  if (values) options.v = values->view;
  if (ks) options.k_scale = ks->view;
  if (ko) options.k_offset = ko->view;
  if (cs) options.c_scale = cs->view;
  if (co) options.c_offset = co->view;
  std::optional<Output> k_rows, c_rows;
  if (k_out) options.k_out = k_rows.emplace(import_output(kOp, "k_out", *k_out)).view;
  if (c_out) options.c_out = c_rows.emplace(import_output(kOp, "c_out", *c_out)).view;
  const nb::gil_scoped_release released;
  kv_rms_norm_rope_cache(context_or_default(context), rows.view, gains.view, cosines.view, sines.view, places.view,
                         k.view, c.view, options);
}

}  // namespace

void bind_kv_cache(nb::module_& module) {
  module.def("kv_rms_norm_rope_cache", &run, "kv"_a, "gamma"_a, "cos"_a, "sin"_a, "index"_a, "k_cache"_a, "c_cache"_a,
             "mode"_a = "norm", "eps"_a.sig("1e-05") = 1e-5f, nb::kw_only(), "v"_a = nb::none(),
             "k_scale"_a = nb::none(), "k_offset"_a = nb::none(), "c_scale"_a = nb::none(), "c_offset"_a = nb::none(),
             "k_out"_a = nb::none(), "c_out"_a = nb::none(), "context"_a = nb::none(),
             R"(What latent attention (DeepSeek-V2) writes for each token, in one pass, into its two caches.

kv [batch, heads, seq, norm_len + rope_dim]: the first part is RMS-normalised with gamma and goes to
c_cache, the rest is rotated ('interleave_half' of rotary_mul, by cos and sin [batch or 1, seq,
rope_dim] f32) and goes to k_cache. With v, all of a row is normalised, its start rotated, and the row
goes to k_cache, v to c_cache. index int64, -1 skips: mode 'norm' [batch, seq], rows of the caches
[batch, heads, max_len, dim]; 'pa' [batch * seq], page * page_size + row of caches [pages, heads,
page_size, dim]; 'pa_blk' [batch * ceil(seq / page_size)], the first place of each run; with '_nz' the
caches are [pages, heads * dim / e, page_size, e], e = 32 bytes. Caches are as kv, or int8 codes
round(x * scale + offset) within [-128, 127], scale and offset [dim] f32. k_out and c_out [batch, heads,
seq, dim] receive the rows unquantised.)");
}

}  // namespace ops_transformer::python
