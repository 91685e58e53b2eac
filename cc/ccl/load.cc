// SPDX-License-Identifier: Apache-2.0
#include "ccl/load.h"

namespace jhetcc::ccl {
namespace {

struct Adapter {
  const char* name;
  LoadFunction* load;
};
constexpr Adapter kAdapters[] = {
    {"mpi", mpi::load},
    {"oneccl", oneccl::load},
};

}  // namespace

Result<std::shared_ptr<Library>> load(const LoadOptions& options) {
  std::string known;
  for (const Adapter& adapter : kAdapters) {
    if (options.name == adapter.name) return adapter.load(options);
    known += (known.empty() ? "" : ", ") + std::string(adapter.name);
  }
  return Status(Kind::kBadArgument, Scope::kCall, "unknown_library",
                "no adapter is called '" + options.name + "'; there are: " + known);
}

}  // namespace jhetcc::ccl
