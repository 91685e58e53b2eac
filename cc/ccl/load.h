// SPDX-License-Identifier: Apache-2.0
// Which adapters there are, and how one is loaded. Loading sets environment variables, so it belongs to the start of a
// job, before other threads read them.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "ccl/library.h"
#include "net/secret.h"

namespace jhetcc::ccl {

struct LoadOptions {
  std::string name;         ///< "oneccl", "mpi"
  std::string path;         ///< the library's file, or a folder that holds it; empty: where the system's loader looks
  bool is_crowded = false;  ///< this host has more ranks than processors: waiting threads must give way
  /// Name of the network interface between the hosts; empty: all members are on this one, and nothing listens
  /// elsewhere.
  std::string interface;
  net::Secret secret = net::Secret::none();  ///< the job's: guards what a server of ours tells the members
};

using LoadFunction = Result<std::shared_ptr<Library>>(const LoadOptions&);

/// Once a name and process; a second call gives another Library over the same loaded file. kBadArgument for an unknown
/// name, kUnavailable ("library_missing", "library_unsuitable") where there is none that can be used, with what to do.
LoadFunction load;

// One line an adapter; its other headers are its own.
namespace mpi {
LoadFunction load;
}
namespace oneccl {
LoadFunction load;
}

}  // namespace jhetcc::ccl
