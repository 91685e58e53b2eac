// SPDX-License-Identifier: Apache-2.0
// Communicators of the tests' NCCL: members of a process find each other by the id; kernels wait on the streams for
// each other. One lock for the whole library.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "device/fake/api.h"
#include "fake_nccl/fake_nccl.h"

namespace jhetcc::tests::fake_nccl {

// ncclResult_t.
enum Code {
  kSuccess,
  kUnhandledCudaError,
  kSystemError,
  kInternalError,
  kInvalidArgument,
  kInvalidUsage,
  kRemoteError,
  kInProgress
};

/// What all members must ask for alike.
struct Request {
  enum Kind { kAllReduce, kReduce, kReduceScatter, kAllGather, kBroadcast } kind;
  size_t count;
  int type, op, root;
  bool operator==(const Request&) const = default;
};

struct Collective {
  Request request;
  std::vector<const uint8_t*> sources;
  std::vector<uint8_t*> targets;
  int arrived = 0, left = 0;
  bool is_done = false;
};

struct Message {
  const uint8_t* source;
  size_t bytes;
  bool is_taken = false;
};

struct Clique {
  int size = 0;  ///< 0: nobody has come yet
  int joined = 0;
  bool is_broken = false;  ///< a member aborted: nothing is completed any more
  std::vector<bool> ranks;
  std::map<uint64_t, std::shared_ptr<Collective>> collectives;                   ///< by each member's count of them
  std::map<std::pair<int, int>, std::deque<std::shared_ptr<Message>>> messages;  ///< by (from, to)
};

struct Member {
  std::shared_ptr<Clique> clique;
  int rank = 0;
  bool is_blocking = true;
  bool is_aborted = false, is_finalized = false;
  bool is_connected = false;  ///< the first call of a member that does not block goes on by itself for some polls
  int polls_left = 0;
  int outstanding = 0;  ///< kernels queued and not done
  int error = kSuccess;
  uint64_t collectives = 0;
};

struct State {
  std::mutex mutex;
  std::condition_variable changed;
  const device::fake::Api* api = nullptr;
  std::map<std::string, std::shared_ptr<Clique>> cliques;
  std::map<void*, std::shared_ptr<Member>> members;  ///< by handle, while they live
  Counts counts;
};
State& state();

/// Kernels, as the streams ask them: true when done.
bool stepCollective(Member& member, uint64_t number, const Request& request, const uint8_t* source, uint8_t* target,
                    bool& has_arrived);
struct Transfer {
  int peer;
  const uint8_t* source;
  uint8_t* target;
  size_t bytes;
  std::shared_ptr<Message> message;
  bool is_done = false;
};
bool stepTransfers(Member& member, std::vector<Transfer>& transfers, bool& has_arrived);

}  // namespace jhetcc::tests::fake_nccl
