// SPDX-License-Identifier: Apache-2.0
// A member process of the adapters' conformance tests: who it is, and how members find each other.
#pragma once

#include <string>
#include <vector>

#include "ccl/load.h"
#include "control/store.h"

namespace jhetcc::ccl {

inline const SystemClock kClock;
inline net::Deadline inSeconds(int64_t seconds) { return net::Deadline::after(kClock, seconds * 1000 * kNsPerMs); }

/// Ends the process with code 1 and the text; a member has nobody to tell but its parent.
void require(bool good, const std::string& text);
inline void require(const Status& status, const std::string& text) {
  require(status.isOk(), text + ": " + status.message());
}
template <typename T>
T must(Result<T> result, const std::string& text) {
  require(result.status(), text);
  return std::move(result).value();
}

struct Member {
  int32_t rank = 0, size = 0;
  std::vector<LoadOptions> libraries;  ///< as the parent named them
  std::unique_ptr<control::StoreClient> store;

  /// A communicator of these ranks in their order (empty: the first one, of all); `name` is fresh.
  Result<std::unique_ptr<Communicator>> create(Library& library, const std::string& name,
                                               const std::vector<int32_t>& ranks = {});
};

/// Every operation of one communicator against the oracle; `rank`, `size` within it.
void checkEverything(Communicator& communicator, const Capabilities& capabilities, int32_t rank, int32_t size);
/// A few operations.
void checkBriefly(Communicator& communicator, int32_t rank, int32_t size);

}  // namespace jhetcc::ccl
