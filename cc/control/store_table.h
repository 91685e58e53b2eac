// SPDX-License-Identifier: Apache-2.0
// Private to the store server: the map with its limits and who waits for which key. No I/O; the server's thread only.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "control/store_protocol.h"

namespace jhetcc::control {

constexpr size_t kStoreWaitsPerCallerMax = 4096;

/// A get that waits: by which caller and which request of it.
struct StoreWaiter {
  uint64_t caller;
  uint64_t request;
};

struct StoreLimits {
  size_t keys_max = kStoreKeysMax;
  size_t bytes_max = kStoreBytesMax;
};

class StoreTable {
 public:
  explicit StoreTable(StoreLimits limits = {}) : limits_(limits) {}

  /// The answer to `request`, or none while a kGet waits (and none, ever, to kForget). `woken`: waiters whose key now
  /// exists, with its value in *woken_value.
  std::optional<StoreOutcome> handle(uint64_t caller, const StoreRequest& request, std::vector<StoreWaiter>* woken,
                                     std::string* woken_value);
  /// The caller is gone, and its waits with it.
  void forgetCaller(uint64_t caller);
  size_t waits() const { return waits_.size(); }

 private:
  StoreOutcome store(const StoreRequest& request, std::string value, std::vector<StoreWaiter>* woken,
                     std::string* woken_value);
  StoreOutcome add(const StoreRequest& request, std::vector<StoreWaiter>* woken, std::string* woken_value);
  StoreOutcome list(std::string_view prefix) const;
  std::optional<StoreOutcome> get(uint64_t caller, const StoreRequest& request);

  StoreLimits limits_;
  size_t bytes_ = 0;
  std::map<std::string, std::string, std::less<>> values_;
  std::multimap<std::string, StoreWaiter, std::less<>> waits_;
  std::map<uint64_t, size_t> waits_of_;
};

}  // namespace jhetcc::control
