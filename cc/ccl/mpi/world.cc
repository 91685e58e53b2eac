// SPDX-License-Identifier: Apache-2.0
// MPI_Finalize is never called: it waits for every member of the world, of which some may be lost and others at work
// for hours, and the world may serve the process's next job. What it would free ends with the process.
#include "ccl/mpi/world.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cstdlib>
#include <fstream>
#include <numeric>

#include "base/exit.h"
#include "base/log.h"
#include "base/system_text.h"
#include "ccl/mpi/pmi_table.h"
#include "ccl/segments.h"
#include "net/connect.h"
#include "net/crypto.h"
#include "net/socket.h"

namespace jhetcc::ccl::mpi {
namespace {

/// Ranks with equal names share memory: the machine and its /dev/shm.
std::string hostName() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  struct stat shm{};
  ::stat("/dev/shm", &shm);
  return (boot.empty() ? "unknown" : boot) + "." + std::to_string(shm.st_dev);
}

Status unavailable(const std::string& message) {
  return Status(Kind::kUnavailable, Scope::kProcess, "mpi_world", message);
}

/// Byte by byte, so that nothing meant for MPI is taken.
Result<std::string> receiveLine(int fd, const net::Deadline& deadline, const std::string& what) {
  std::string line;
  for (char byte = 0; line.size() <= kPmiLineBytesMax; line += byte) {
    const Status status = net::receiveAll(fd, &byte, 1, deadline, what);
    if (!status.isOk()) return status;
    if (byte == '\n') return line;
  }
  return Status(Kind::kDisconnected, Scope::kEndpoint, "mpi_world", what + ": the answer has no end");
}

/// Variables that MPI reads while it begins, and nobody after.
class PmiEnvironment {
 public:
  PmiEnvironment(int fd, int32_t rank, int32_t size) {
    ::setenv("PMI_FD", std::to_string(fd).c_str(), 1);
    ::setenv("PMI_RANK", std::to_string(rank).c_str(), 1);
    ::setenv("PMI_SIZE", std::to_string(size).c_str(), 1);
  }
  ~PmiEnvironment() {
    for (const char* name : {"PMI_FD", "PMI_RANK", "PMI_SIZE"}) ::unsetenv(name);
  }
};

}  // namespace

Status failed(const Abi& abi, const std::string& what, Code code) {
  char text[kErrorTextMax + 1] = {};
  int size = 0;
  if (abi.errorText(code, text, &size) != 0) text[0] = '\0';
  return Status(
      Kind::kDisconnected, Scope::kCommunicator, "library_failed",
      what + ": MPI says " + std::to_string(code) + " (" + text + "); its communicator cannot be used any more");
}

void armExit() {
  if (const Status status = exitWithoutDestructors(); !status.isOk()) JHETCC_LOG(kWarn, "ccl", status.message());
}

World& World::ofProcess() {
  static World* const world = new World;  // never destroyed: MPI never ends
  return *world;
}

Status World::enter(const Abi& abi, const std::string& token, int32_t rank, int32_t size, const net::Secret& secret,
                    const net::Deadline& deadline) {
  const size_t space = token.find(' ');
  if (space == std::string::npos) {
    return Status(Kind::kBadArgument, Scope::kCall, "bad_argument", "'" + token + "' is no token of an MPI world");
  }
  Result<net::Address> address = net::Address::parse(token.substr(0, space));
  if (!address.isOk()) return address.status();
  const std::string name = token.substr(space + 1);
  const std::string what = "joining an MPI world as rank " + std::to_string(rank) + " of " + std::to_string(size) +
                           " at " + address.value().text();
  net::Identity mine;
  mine.job = name;
  mine.rank = rank;
  if (const Status random = net::fillRandom(&mine.incarnation, sizeof(mine.incarnation)); !random.isOk()) return random;
  Result<net::Connection> connection = net::connect(address.value(), secret, mine, net::kAnyRank, deadline);
  if (!connection.isOk()) return connection.status().withContext(what);
  const int fd = connection.value().fd.get();

  const bool fits = size_ == 0 || (size_ == size && rank_ == rank);
  const std::string join = pmiJoinLine(size,
                                       is_lost_.load() ? "lost"
                                       : size_ == 0    ? "none"
                                       : fits          ? name_
                                                       : "other",
                                       hostName());
  JHETCC_RETURN_IF_ERROR(net::sendAll(fd, join.data(), join.size(), deadline, what));
  Result<std::string> answer = receiveLine(fd, deadline, what + " (waiting for all members)");
  if (!answer.isOk()) return answer.status();
  const PmiLine line(answer.value());
  if (line.field("cmd") != "jhetcc_go") return unavailable(what + ": " + std::string(line.field("why")));
  if (!fits) {
    return unavailable(what + ": MPI begins once in a process, and here it began as rank " + std::to_string(rank_) +
                       " of " + std::to_string(size_) + ": start the processes anew");
  }
  if (line.field("world") != "none") return Status::ok();
  JHETCC_RETURN_IF_ERROR(begin(abi, rank, size, connection.value().fd.release()).withContext(what));
  name_ = name;
  return Status::ok();
}

Status World::begin(const Abi& abi, int32_t rank, int32_t size, int fd) {
  int flag = 0;
  if (abi.initialized(&flag) != 0 || flag != 0) {
    return unavailable("somebody else in this process began MPI already; jhetcc must come first");
  }
  if (::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) & ~O_NONBLOCK) != 0) {
    return unavailable("no blocking socket: " + systemText(errno));
  }
  int provided = 0, found_rank = -1, found_size = -1;
  Code code = 0;
  {
    const PmiEnvironment environment(fd, rank, size);
    code = abi.initThread(nullptr, nullptr, kThreadMultiple, &provided);
  }
  if (code != 0) return failed(abi, "MPI_Init_thread", code);
  for (const Comm comm : {kCommWorld, kCommSelf}) {
    if (code == 0) code = abi.setErrhandler(comm, kErrorsReturn);
  }
  if (code == 0) code = abi.commRank(kCommWorld, &found_rank);
  if (code == 0) code = abi.commSize(kCommWorld, &found_size);
  if (code != 0) return failed(abi, "looking at the new world", code);
  if (found_rank != rank || found_size != size) {
    return unavailable("this MPI began as rank " + std::to_string(found_rank) + " of " + std::to_string(found_size) +
                       ": it does not speak PMI-1, by which jhetcc starts it");
  }
  if (provided != kThreadMultiple) return unavailable("this MPI has no MPI_THREAD_MULTIPLE");
  rank_ = rank;
  size_ = size;
  return Status::ok();
}

Result<Comm> World::communicator(const Abi& abi, const std::vector<int32_t>& ranks, int tag) {
  std::vector<int> members(ranks.begin(), ranks.end());
  if (members.empty()) {
    members.resize(static_cast<size_t>(size_));
    std::iota(members.begin(), members.end(), 0);
  }
  for (const int member : members) {
    if (member < 0 || member >= size_) {
      return Status(Kind::kBadArgument, Scope::kCall, "bad_argument",
                    "rank " + std::to_string(member) + " is not in an MPI world of " + std::to_string(size_));
    }
  }
  MpiGroup all = 0, chosen = 0;
  if (const Code code = abi.commGroup(kCommWorld, &all); code != 0) return failed(abi, "MPI_Comm_group", code);
  Comm made = kCommNull;
  Code code = abi.groupInclude(all, static_cast<int>(members.size()), members.data(), &chosen);
  if (code == 0) {
    code = abi.commCreateGroup(kCommWorld, chosen, tag, &made);
    abi.groupFree(&chosen);
  }
  abi.groupFree(&all);
  if (code == 0 && made != kCommNull) code = abi.setErrhandler(made, kErrorsReturn);
  if (code != 0) return failed(abi, "MPI_Comm_create_group", code);
  if (made == kCommNull) {
    return Status(Kind::kBadArgument, Scope::kCall, "bad_argument", "this process is no member of the communicator");
  }
  // MPICH would take the names of its shared memory away in MPI_Finalize. All members have mapped it by now.
  removeSegments([](const std::string& name) { return name.starts_with("mpich_shm_"); });
  return made;
}

}  // namespace jhetcc::ccl::mpi
