// SPDX-License-Identifier: Apache-2.0
// One rank of the adapters' conformance tests: who it is, and how members find each other. One thread.
#pragma once

#include <map>
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

class Place;

struct Member {
  int32_t rank = 0, size = 0;
  bool is_process = true;              ///< else other ranks are in this process, too
  std::vector<LoadOptions> libraries;  ///< as the parent named them
  std::shared_ptr<control::StoreClient> store;

  std::shared_ptr<Library> load(size_t which = 0) const;
  /// A communicator of these ranks in their order (empty: the first one, of all); `name` is fresh.
  Result<std::unique_ptr<Communicator>> create(Library& library, const std::string& name,
                                               const std::vector<int32_t>& ranks = {});
};

/// Every operation of one communicator against the oracle; `rank`, `size` within it.
void checkEverything(Communicator& communicator, Place& place, const Capabilities& capabilities, int32_t rank,
                     int32_t size);
/// A few operations.
void checkBriefly(Communicator& communicator, Place& place, int32_t rank, int32_t size);

/// What a rank does, by name; the result is the process's exit code, unless another rank of it has a higher one.
using Scenario = int(Member&);
const std::map<std::string, Scenario*>& scenarios();

}  // namespace jhetcc::ccl
