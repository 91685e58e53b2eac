// SPDX-License-Identifier: Apache-2.0
#include <nanobind/stl/string.h>
#include <unistd.h>

#include <atomic>

#include "py/bindings.h"

namespace nb = nanobind;

namespace jhetcc::py {

void raiseIfError(const Status& status) {
  if (status.isOk()) return;
  nb::tuple ranks = nb::steal<nb::tuple>(PyTuple_New(static_cast<Py_ssize_t>(status.ranks().size())));
  for (size_t k = 0; k < status.ranks().size(); ++k) {
    PyTuple_SetItem(ranks.ptr(), static_cast<Py_ssize_t>(k), PyLong_FromLong(status.ranks()[k]));
  }
  nb::object make = nb::module_::import_("jhetcc.errors").attr("make");
  nb::object error = make(kindName(status.kind()), status.message(), nb::arg("code") = status.code(),
                          nb::arg("scope") = scopeName(status.scope()), nb::arg("ranks") = ranks);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
  throw nb::python_error();
}

void raiseAfterWait(const Status& status) {
  if (PyErr_Occurred()) throw nb::python_error();
  raiseIfError(status);
}

namespace {
std::atomic<bool> is_exiting{false};
thread_local bool is_the_exiting_thread = false;
}  // namespace

void LockReleased::beginExit() {
  is_the_exiting_thread = true;
  is_exiting.store(true);
}

void LockReleased::restIfExiting() {
  while (is_exiting.load() && !is_the_exiting_thread) pause();
}

bool interrupted() {
  LockReleased::restIfExiting();
  if (!Py_IsInitialized()) return true;
  nb::gil_scoped_acquire gil;
  // The error stays set: the caller's raise finds it.
  return PyErr_CheckSignals() != 0;
}

}  // namespace jhetcc::py

NB_MODULE(_core, module) {
  module.doc() = "The C++ core. Private: use the functions of the package.";
  nb::set_leak_warnings(false);  // interpreter exit order is the user's business
  jhetcc::py::bindProcess(module);
  jhetcc::py::bindRawCall(module);
  jhetcc::py::bindNet(module);
  jhetcc::py::bindLibrary(module);
  jhetcc::py::bindReduce(module);
  jhetcc::py::bindFfi(module);
  jhetcc::py::bindLog(module);
}
