// SPDX-License-Identifier: Apache-2.0
#include "ccl/oneccl/communicator.h"

#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>

#include "base/exit.h"
#include "base/log.h"
#include "ccl/segments.h"

namespace jhetcc::ccl::oneccl {
namespace {

/// Ended; waited for by its parent or not.
bool isGone(pid_t pid) {
  if (pid <= 0) return false;
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  if (!std::getline(file, text)) return ::kill(pid, 0) != 0 && errno == ESRCH;
  const size_t end = text.rfind(')');  // the state follows the name, which may hold anything
  return end != std::string::npos && end + 2 < text.size() && (text[end + 2] == 'Z' || text[end + 2] == 'X');
}

/// libfabric names the segment of a process /dev/shm/<pid>:<n>:<n> and leaves it where a communicator was not
/// destroyed. Takes away this process's own, and those of members that were killed and could not.
void sweepSegments() {
  removeSegments([](const std::string& name) {
    const size_t colon = name.find(':');
    if (colon == 0 || colon == std::string::npos || name.find_first_not_of("0123456789:") != std::string::npos)
      return false;
    const pid_t pid = std::atoi(name.c_str());
    return pid == ::getpid() || isGone(pid);
  });
}

/// What two ranks have for each other in one exchange.
struct Turn {
  std::vector<Communicator::Transfer> sends, receives;
};

}  // namespace

Status failed(const Abi& abi, const std::string& what, Code code, Comm comm) {
  const char* name = abi.getErrorString(code);
  const char* detail = comm ? abi.getLastError(comm) : nullptr;
  return Status(Kind::kDisconnected, Scope::kCommunicator, "library_failed",
                what + ": oneCCL says " + std::to_string(code) + " (" + (name ? name : "no text") + ")" +
                    (detail && *detail ? std::string(": ") + detail : "") +
                    "; its communicator cannot be used any more");
}

void armExit() {
  if (const Status status = exitWithoutDestructors(sweepSegments); !status.isOk()) {
    JHETCC_LOG(kWarn, "ccl", status.message());
  }
}

Status OnecclCommunicator::reduce(const void* source, void* target, size_t count, schedule::DataType type,
                                  schedule::ReduceOp op, int32_t root, Stream stream) {
  return reduceWith("reduce", count, type, op, [&](State& s, int t, int o) {
    return s.abi.reduce(source, target, count, t, o, root, s.comm, stream);
  });
}

Status OnecclCommunicator::allReduce(const void* source, void* target, size_t count, schedule::DataType type,
                                     schedule::ReduceOp op, Stream stream) {
  return reduceWith("all_reduce", count, type, op, [&](State& s, int t, int o) {
    return s.abi.allReduce(const_cast<void*>(source), target, count, t, o, s.comm, stream);
  });
}

Status OnecclCommunicator::reduceScatter(const void* source, void* target, size_t count, schedule::DataType type,
                                         schedule::ReduceOp op, Stream stream) {
  return reduceWith("reduce_scatter", count, type, op, [&](State& s, int t, int o) {
    return s.abi.reduceScatter(source, target, count, t, o, s.comm, stream);
  });
}

Status OnecclCommunicator::broadcast(const void* source, void* target, size_t bytes, int32_t root, Stream stream) {
  return moveWith("broadcast", bytes, [&](State& s) {
    // In place at the root, so that its target is not written.
    void* const place = s.rank == root ? const_cast<void*>(source) : target;
    return s.abi.broadcast(place, place, bytes, kInt8, root, s.comm, stream);
  });
}

Status OnecclCommunicator::allGather(const void* source, void* target, size_t bytes, Stream stream) {
  return moveWith("all_gather", bytes,
                  [&](State& s) { return s.abi.allGather(source, target, bytes, kInt8, s.comm, stream); });
}

Status OnecclCommunicator::allToAll(const void* source, void* target, size_t bytes, Stream stream) {
  return moveWith("all_to_all", bytes,
                  [&](State& s) { return s.abi.allToAll(source, target, bytes, kInt8, s.comm, stream); });
}

/// oneCCL carries a group out one by one and in its order, so groups of several ranks may wait in a ring. Here pairs of
/// ranks take turns, everywhere in the same order, and the lower rank of a pair sends first.
Status OnecclCommunicator::exchange(const std::vector<Transfer>& transfers, Stream stream) {
  std::map<int32_t, Turn> turns;
  for (const Transfer& transfer : transfers) {
    if (transfer.bytes == 0) continue;
    if (transfer.source) turns[transfer.peer].sends.push_back(transfer);
    if (transfer.target) turns[transfer.peer].receives.push_back(transfer);
  }
  return run("exchange", [&](State& s) {
    Code first = 0;
    const auto sendAll = [&](const Turn& turn) {
      for (const Transfer& t : turn.sends) {
        if (first == 0) first = s.abi.send(t.source, t.bytes, kInt8, t.peer, s.comm, stream);
      }
    };
    for (const auto& [peer, turn] : turns) {
      if (peer == s.rank) {
        for (size_t i = 0; i < turn.sends.size() && i < turn.receives.size(); ++i) {
          std::memmove(turn.receives[i].target, turn.sends[i].source, turn.sends[i].bytes);
        }
        continue;
      }
      if (s.rank < peer) sendAll(turn);
      for (const Transfer& t : turn.receives) {
        if (first == 0) first = s.abi.recv(t.target, t.bytes, kInt8, t.peer, s.comm, stream);
      }
      if (s.rank > peer) sendAll(turn);
    }
    return first;
  });
}

}  // namespace jhetcc::ccl::oneccl
