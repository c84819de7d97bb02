// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/base/context.h"

#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ops_transformer/base/error.h"
#include "ops_transformer/profiler/profiler.h"
#include "python/bindings.h"
#include "python/output_memory.h"

namespace ops_transformer::python {
namespace {

namespace nb = nanobind;
using namespace nb::literals;

void construct_context(Context* self, std::optional<int> num_threads, bool deterministic,
                       std::optional<std::string> isa) {
  ContextOptions options{.num_threads = num_threads, .deterministic = deterministic};
  if (isa) {
    options.isa = isa_from_name(*isa);
    if (!options.isa) throw InvalidArgument(fmt::format("isa is '{}', must be one of supported_isas()", *isa));
  }
  new (self) Context(options);
}

std::vector<std::string_view> names_of_supported_isas() {
  std::vector<std::string_view> names;
  for (Isa isa : supported_isas()) names.push_back(isa_name(isa));
  return names;
}

}  // namespace

void bind_context(nb::module_& module) {
  nb::class_<Context>(module, "Context", R"(What calls run on: threads, workspace, instruction-set level.

A context serves one call at a time with its threads; calls from other threads meanwhile run on
their own thread alone. num_threads None: the CPUs this process may use. deterministic: the same
bits for any thread count, chunking and batch neighbours. isa: the highest instruction-set level to
use, one of supported_isas(). Raises ValueError for values outside these.)")
      .def("__init__", &construct_context, "num_threads"_a = nb::none(), "deterministic"_a = false,
           "isa"_a = nb::none())
      .def_prop_ro("num_threads", &Context::num_threads)
      .def_prop_ro("deterministic", &Context::deterministic)
      .def_prop_ro("isa", [](const Context& self) { return isa_name(self.isa()); })
      .def_prop_ro("workspace_high_water_bytes", &Context::workspace_high_water_bytes,
                   "The most workspace bytes that one call has used.")
      .def_prop_rw("profiler", &Context::profiler, &Context::set_profiler, nb::rv_policy::reference,
                   nb::for_setter(nb::keep_alive<1, 2>()), nb::for_setter(nb::arg("profiler").none()),
                   "What records this context's calls; None: nothing does. Set it between calls.")
      .def("__repr__", [](const Context& self) {
        return fmt::format("Context(num_threads={}, deterministic={}, isa='{}')", self.num_threads(),
                           self.deterministic() ? "True" : "False", isa_name(self.isa()));
      });
  module.def("default_context", &Context::process_default, nb::rv_policy::reference,
             "The context of calls that name none.");
  module.def("supported_isas", &names_of_supported_isas, "Instruction-set levels that run here, ascending.");
  module.def("idle_output_bytes", &idle_output_bytes,
             "Bytes of freed outputs that are kept to be used again by fresh ones.");
}

}  // namespace ops_transformer::python
