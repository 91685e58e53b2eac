// SPDX-License-Identifier: Apache-2.0
// RawCall: one operation on one communicator, made ready for blocking calls on plain buffers.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "py/bindings.h"
#include "runtime/process.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace jhetcc::py {
namespace {

using runtime::Process;
using BufferTuple = std::tuple<uintptr_t, uint64_t, uintptr_t, uint64_t>;

/// A Python object's contiguous bytes, held; None has none.
class HeldBuffer {
 public:
  HeldBuffer(nb::handle object, int flags) {
    if (object.is_none()) return;
    is_held_ = PyObject_GetBuffer(object.ptr(), &view_, flags) == 0;
    is_good_ = is_held_;
    if (!is_held_) PyErr_Clear();  // the caller has a slower way, which also finds the words
  }
  ~HeldBuffer() {
    if (is_held_) PyBuffer_Release(&view_);
  }
  HeldBuffer(const HeldBuffer&) = delete;
  HeldBuffer& operator=(const HeldBuffer&) = delete;
  bool isGood() const { return is_good_; }
  void* data() const { return is_held_ ? view_.buf : nullptr; }
  uint64_t bytes() const { return is_held_ ? static_cast<uint64_t>(view_.len) : 0; }

 private:
  Py_buffer view_{};
  bool is_held_ = false, is_good_ = true;
};

class RawCall {
 public:
  RawCall(std::shared_ptr<Process> process, runtime::Prepared prepared)
      : process_(std::move(process)), prepared_(std::move(prepared)), interrupted_(interrupted) {}

  void run(const std::vector<BufferTuple>& tuples) {
    std::vector<engine::Buffers> buffers;
    for (const auto& [input, input_bytes, output, output_bytes] : tuples) {
      buffers.push_back(
          {reinterpret_cast<const void*>(input), reinterpret_cast<void*>(output), input_bytes, output_bytes});
    }
    runReleased(buffers.data(), buffers.size());
  }

  /// False: nothing was done, for a buffer is not contiguous or not writable.
  bool runOne(nb::handle input, nb::handle output) {
    HeldBuffer given(input, PyBUF_SIMPLE), got(output, PyBUF_WRITABLE);
    if (!given.isGood() || !got.isGood()) return false;
    const engine::Buffers buffers{given.data(), got.data(), given.bytes(), got.bytes()};
    runReleased(&buffers, 1);
    return true;
  }

 private:
  void runReleased(const engine::Buffers* buffers, size_t count) {
    Status status;
    {
      const LockReleased release;
      status = process_->run(prepared_, buffers, count, interrupted_);
    }
    raiseAfterWait(status);
  }

  const std::shared_ptr<Process> process_;
  const runtime::Prepared prepared_;
  const std::function<bool()> interrupted_;
};

}  // namespace

void bindRawCall(nb::module_& module) {
  nb::class_<RawCall>(module, "RawCall",
                      "One operation on one communicator, ready for blocking calls; fails once that was closed.")
      .def("run", &RawCall::run, "buffers"_a, "A tuple for each local rank: address and bytes of input and output.")
      .def("run_one", &RawCall::runOne, "input"_a.none(), "output"_a.none(),
           "For one local rank, on objects with contiguous buffers or None. False: a buffer does not fit, nothing was "
           "done.");
  module.def(
      "raw_call",
      [](std::shared_ptr<Process> process, std::string_view communicator, std::string_view text) {
        Result<runtime::Prepared> prepared = process->prepareBlocking(communicator, text);
        raiseIfError(prepared.status());
        return new RawCall(std::move(process), std::move(prepared).value());
      },
      "process"_a, "communicator"_a, "text"_a, nb::rv_policy::take_ownership);
}

}  // namespace jhetcc::py
