// SPDX-License-Identifier: Apache-2.0
// The one MPI world that a process can have, for MPI begins once. It outlives every Library: a later job of the same
// processes uses it again. One thread makes communicators; markLost() from any.
#pragma once

#include <atomic>
#include <string>

#include "ccl/mpi/abi.h"
#include "net/deadline.h"
#include "net/secret.h"

namespace jhetcc::ccl::mpi {

/// What MPI says of a code.
Status failed(const Abi& abi, const std::string& what, Code code);
/// Lets the process end with a thread stuck in the library.
void armExit();

class World {
 public:
  static World& ofProcess();

  /// Meets the other members at the server of the token and begins MPI with them, or finds that they have one world
  /// already.
  Status enter(const Abi& abi, const std::string& token, int32_t rank, int32_t size, const net::Secret& secret,
               const net::Deadline& deadline);
  bool isEntered() const { return size_ != 0; }
  /// A communicator of these ranks of the world, all of which call this; empty: of all.
  Result<Comm> communicator(const Abi& abi, const std::vector<int32_t>& ranks, int tag);
  /// A member is lost or a call was given up: no further world can be had in this process.
  void markLost() { is_lost_.store(true); }

 private:
  World() = default;
  Status begin(const Abi& abi, int32_t rank, int32_t size, int fd);

  int32_t rank_ = 0, size_ = 0;  ///< size 0: MPI has not begun
  std::string name_;
  std::atomic<bool> is_lost_{false};
};

}  // namespace jhetcc::ccl::mpi
