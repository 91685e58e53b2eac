// SPDX-License-Identifier: Apache-2.0
// What opening a cluster's library and calling it share: how members meet to make a communicator of it. Threads that
// may be given up call this: it may block for ever.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/native.h"

namespace jhetcc::runtime {

/// "0, 3, 4"
std::string listed(const std::vector<int32_t>& ranks);
/// Of a limited length, as keys of the store are.
std::string keyOf(const std::vector<int32_t>& ranks);
/// An error, with the library's name and version.
Status sayWhere(const LibraryInUse& in_use, const Status& status);

/// With the other members, by a token in the store under `key`.
Result<std::unique_ptr<ccl::Communicator>> makeCommunicator(const LibraryInUse& in_use, const std::string& key,
                                                            const std::vector<int32_t>& world_ranks, int32_t world_rank,
                                                            bool is_first, const std::function<bool()>& cancelled);

}  // namespace jhetcc::runtime
