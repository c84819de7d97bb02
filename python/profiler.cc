// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/profiler/profiler.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "python/bindings.h"

namespace ops_transformer::python {

namespace nb = nanobind;
using namespace nb::literals;

void bind_profiler(nb::module_& module) {
  nb::class_<ProfileTotal>(module, "ProfileTotal", "All calls of one operator with one plan.")
      .def_ro("op", &ProfileTotal::op)
      .def_ro("plan", &ProfileTotal::plan)
      .def_ro("calls", &ProfileTotal::calls)
      .def_ro("seconds", &ProfileTotal::seconds, "Wall time.")
      .def_ro("self_seconds", &ProfileTotal::self_seconds, "Without the operators called inside.")
      .def_ro("bytes", &ProfileTotal::bytes)
      .def_ro("flops", &ProfileTotal::flops);
  nb::class_<Profiler>(module, "Profiler",
                       R"(Records the operator calls of the contexts it is set on: context.profiler = Profiler().

The trace keeps the latest max_events calls.)")
      .def(nb::init<std::size_t>(), "max_events"_a = 65536)
      .def("totals", &Profiler::totals, "Longest self time first.")
      .def("table", &Profiler::table, "The totals as text: calls, milliseconds, share of the time, GB/s and GFLOP/s.")
      .def("trace_json", &Profiler::trace_json, "The kept calls as Chrome trace, which ui.perfetto.dev reads.")
      .def("write_trace", &Profiler::write_trace, "path"_a, "Writes trace_json() to a file.")
      .def("clear", &Profiler::clear)
      .def_prop_ro("num_dropped_events", &Profiler::num_dropped_events, "Calls that the trace no longer holds.");
}

}  // namespace ops_transformer::python
