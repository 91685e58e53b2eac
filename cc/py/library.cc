// SPDX-License-Identifier: Apache-2.0
// Library: a vendor's collective library, loaded; and Process.use_library.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "ccl/load.h"
#include "py/bindings.h"
#include "runtime/process.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace jhetcc::py {
namespace {

std::shared_ptr<ccl::Library> load(const std::string& name, const std::string& path, bool crowded,
                                   const std::string& interface, const net::Secret& secret) {
  Result<std::shared_ptr<ccl::Library>> library = ccl::load({name, path, crowded, interface, secret});
  raiseIfError(library.status());
  return std::move(library).value();
}

std::vector<std::pair<int, int>> refuses(const ccl::Library& library) {
  std::vector<std::pair<int, int>> pairs;
  for (const auto& [op, type] : library.capabilities().refuses) {
    pairs.emplace_back(static_cast<int>(op), static_cast<int>(type));
  }
  return pairs;
}

void useLibrary(runtime::Process& process, std::shared_ptr<ccl::Library> library, std::vector<int32_t> world_ranks,
                int32_t world_rank, std::shared_ptr<control::StoreClient> store, const std::string& job,
                const std::string& ended_key, double timeout) {
  runtime::OpenOptions options{std::move(library),
                               std::move(world_ranks),
                               world_rank,
                               std::move(store),
                               static_cast<int64_t>(timeout * 1e9),
                               job,
                               ended_key};
  Status status;
  {
    const LockReleased release;
    auto in_use = runtime::openLibrary(options, interrupted);
    status = in_use.status();
    if (in_use.isOk()) process.useLibrary(std::move(in_use).value());
  }
  raiseAfterWait(status);
}

}  // namespace

void bindLibrary(nb::module_& module) {
  nb::class_<ccl::Library>(module, "Library", "A vendor's collective library, loaded.")
      .def(nb::new_(&load), "name"_a, "path"_a, "crowded"_a, "interface"_a, "secret"_a)
      .def_prop_ro("name", [](const ccl::Library& library) { return library.capabilities().name; })
      .def_prop_ro("version", [](const ccl::Library& library) { return library.capabilities().version; })
      .def_prop_ro("abortable", [](const ccl::Library& library) { return library.capabilities().abortable; })
      .def_prop_ro("uniform", [](const ccl::Library& library) { return library.capabilities().uniform; })
      .def_prop_ro("one_rank_a_process",
                   [](const ccl::Library& library) { return library.capabilities().one_rank_a_process; })
      .def_prop_ro("refuses", &refuses, "Pairs of a reduction and a type, by their numbers in schedules.");
  module.def("use_library", &useLibrary, "process"_a, "library"_a, "world_ranks"_a, "world_rank"_a, "store"_a, "job"_a,
             "ended_key"_a, "timeout"_a);
}

}  // namespace jhetcc::py
