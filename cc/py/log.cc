// SPDX-License-Identifier: Apache-2.0
// Log lines of the core, for Python's logging.
#include "base/log.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "py/bindings.h"

namespace nb = nanobind;

namespace jhetcc::py {

void bindLog(nb::module_& module) {
  module.def("set_log_spec", [](const std::string& spec) { raiseIfError(setLogSpec(spec)); }, nb::arg("spec"));
  module.def(
      "pop_log_line",
      []() -> nb::object {
        LogLine line;
        if (!popLogLine(&line)) return nb::none();
        return nb::make_tuple(levelName(line.level), line.topic, line.text, line.repeats);
      },
      "The oldest line as (level, topic, text, repeats), or None.");
}

}  // namespace jhetcc::py
