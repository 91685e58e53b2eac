// SPDX-License-Identifier: Apache-2.0
// The FFI handlers as capsules, and which process they serve.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>

#include "ffi/handlers.h"
#include "py/bindings.h"

namespace nb = nanobind;

namespace jhetcc::py {

void bindFfi(nb::module_& module) {
  module.def(
      "ffi_handlers",
      [] {
        nb::dict handlers;
        handlers["jhetcc_collective"] = nb::capsule(ffi_room::collectiveHandler());
        handlers["jhetcc_rank"] = nb::capsule(ffi_room::rankHandler());
        return handlers;
      },
      "FFI handlers by target name.");
  module.def(
      "ffi_api_version", [] { return std::make_pair(ffi_room::apiMajor(), ffi_room::apiMinor()); },
      "(major, minor) of the XLA FFI headers the handlers were built with.");
  module.def("set_ffi_process", &ffi_room::setProcess, nb::arg("process").none(),
             "The process the handlers serve; None: they refuse.");
}

}  // namespace jhetcc::py
