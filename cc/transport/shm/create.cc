// SPDX-License-Identifier: Apache-2.0
// Two processes agree on a segment over their unix socket, and find out whether they may read each other's memory.
// Any thread; blocks until the deadline at most.
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/system_text.h"
#include "transport/shm/endpoint.h"

namespace jhetcc::transport::shm {

namespace {

constexpr uint64_t kMagic = 0x314D48534348454AULL;
constexpr uint32_t kVersion = 2;

struct Hello {
  uint64_t magic = kMagic;
  uint32_t version = kVersion;
  uint32_t ring_bytes = 0;     ///< the creator's
  uint64_t probe_address = 0;  ///< where this word lies in the sender:
  uint64_t probe_word = 0;
  uint32_t allow_cma = 0;
  uint32_t is_creator = 0;
};

/// First contact of one endpoint.
struct Meeting {
  int socket;
  int64_t deadline_ns;
  const Clock& clock;
  const std::string& description;
  pid_t peer_pid = 0;
  Fd received;

  Status error(Kind kind, const char* code, const std::string& what) const {
    return Status(kind, Scope::kEndpoint, code, "shm " + description + ": first contact: " + what);
  }
  Status wait(short events) const {
    for (;;) {
      const int64_t left_ns = deadline_ns - clock.nowNs();
      if (left_ns <= 0) return error(Kind::kTimeout, "shm_contact", "the peer did not answer before the deadline");
      pollfd descriptor{socket, events, 0};
      const int ready = ::poll(&descriptor, 1, static_cast<int>(std::min<int64_t>(left_ns / kNsPerMs + 1, 1000)));
      if (ready > 0) return Status::ok();
      if (ready < 0 && errno != EINTR)
        return error(Kind::kInternal, "shm_contact", std::string("poll: ") + strerror(errno));
    }
  }
  Status sendAll(const void* data, size_t size, int memory);
  Status receiveAll(void* data, size_t size);
  void takeAncillary(msghdr& message);
};

/// With our credentials, which the kernel translates into the peer's process numbers, and the segment if there is one.
Status Meeting::sendAll(const void* data, size_t size, int memory) {
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(ucred)) + CMSG_SPACE(sizeof(int))] = {};
  iovec bytes{const_cast<void*>(data), size};
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = CMSG_SPACE(sizeof(ucred)) + (memory >= 0 ? CMSG_SPACE(sizeof(int)) : 0);
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_CREDENTIALS;
  header->cmsg_len = CMSG_LEN(sizeof(ucred));
  const ucred self{getpid(), geteuid(), getegid()};
  std::memcpy(CMSG_DATA(header), &self, sizeof self);
  if (memory >= 0) {
    header = CMSG_NXTHDR(&message, header);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &memory, sizeof memory);
  }
  for (;;) {
    const ssize_t count = sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count == static_cast<ssize_t>(size)) return Status::ok();
    if (count >= 0) return error(Kind::kInternal, "shm_contact", "sendmsg: short write");
    if (errno == EAGAIN || errno == EWOULDBLOCK) {
      JHETCC_RETURN_IF_ERROR(wait(POLLOUT));
    } else if (errno != EINTR) {
      return error(Kind::kDisconnected, "peer_lost", std::string("sendmsg: ") + strerror(errno));
    }
  }
}

void Meeting::takeAncillary(msghdr& message) {
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET) continue;
    if (header->cmsg_type == SCM_CREDENTIALS && header->cmsg_len >= CMSG_LEN(sizeof(ucred))) {
      ucred peer{};
      std::memcpy(&peer, CMSG_DATA(header), sizeof peer);
      peer_pid = peer.pid;
    } else if (header->cmsg_type == SCM_RIGHTS) {
      for (size_t offset = CMSG_LEN(0); offset + sizeof(int) <= header->cmsg_len; offset += sizeof(int)) {
        int descriptor = -1;
        std::memcpy(&descriptor, reinterpret_cast<uint8_t*>(header) + offset, sizeof descriptor);
        received = Fd(descriptor);  // an earlier one, which nobody should send, is closed
      }
    }
  }
}

Status Meeting::receiveAll(void* data, size_t size) {
  for (size_t got = 0; got < size;) {
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(ucred)) + CMSG_SPACE(4 * sizeof(int))] = {};
    iovec bytes{static_cast<uint8_t*>(data) + got, size - got};
    msghdr message{};
    message.msg_iov = &bytes;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    const ssize_t count = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (count > 0) {
      takeAncillary(message);
      if ((message.msg_flags & MSG_CTRUNC) != 0) {  // how the system says it where there is no room for descriptors
        return error(Kind::kResource, "no_descriptor", "no room for the peer's segment: " + systemText(EMFILE));
      }
      got += static_cast<size_t>(count);
    } else if (count == 0) {
      return error(Kind::kDisconnected, "peer_lost", "the peer closed the connection");
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      JHETCC_RETURN_IF_ERROR(wait(POLLIN));
    } else if (errno != EINTR) {
      return error(Kind::kDisconnected, "peer_lost", std::string("recvmsg: ") + strerror(errno));
    }
  }
  return Status::ok();
}

/// Under Yama's restricted scope siblings may read each other only if the owner says so. A process has one such
/// permission, and many peers: so it is given to all processes of this user, which is what hosts without Yama do
/// anyway.
void permitReads() {
  const Fd scope(open("/proc/sys/kernel/yama/ptrace_scope", O_RDONLY | O_CLOEXEC));
  char value = '0';
  if (scope.isOpen() && read(scope.get(), &value, 1) == 1 && value == '1')
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
}

/// Empty: the peer's private memory can be read. Else the reason why not.
std::string probe(pid_t peer_pid, const Hello& peer) {
  if (peer_pid <= 0) return "the peer's process number is not visible here";
  uint64_t word = ~peer.probe_word;
  iovec local{&word, sizeof word};
  iovec remote{reinterpret_cast<void*>(peer.probe_address), sizeof word};  // NOLINT: an address of the peer
  if (process_vm_readv(peer_pid, &local, 1, &remote, 1, 0) != static_cast<ssize_t>(sizeof word)) {
    return std::string("process_vm_readv: ") + strerror(errno);
  }
  return word == peer.probe_word ? "" : "process_vm_readv read another process";
}

Status checkHello(const Meeting& meeting, const Hello& mine, const Hello& peer) {
  if (peer.magic != kMagic || peer.version != kVersion) {
    return meeting.error(Kind::kMismatch, "version_mismatch",
                         "the peer speaks version " + std::to_string(peer.version) + ", this process " +
                             std::to_string(kVersion) + "; install the same release on both");
  }
  if (peer.is_creator == mine.is_creator) {
    return meeting.error(Kind::kInternal, "shm_contact", "both ends claim the same role");
  }
  return Status::ok();
}

}  // namespace

std::string describe(const std::string& names, pid_t peer_pid, const std::string& why_not) {
  return "shm " + names + " (process " + std::to_string(peer_pid) +
         (why_not.empty() ? ", may read its memory)" : ", payloads through the ring: " + why_not + ")");
}

Result<std::unique_ptr<Endpoint>> create(Fd unix_socket, bool creator, const Options& options, std::string description,
                                         int64_t deadline_ns, const Clock& clock) {
  Meeting meeting{unix_socket.get(), deadline_ns, clock, description, 0, Fd()};
  const int on = 1;
  if (setsockopt(meeting.socket, SOL_SOCKET, SO_PASSCRED, &on, sizeof on) != 0) {
    return meeting.error(Kind::kInternal, "shm_contact", std::string("setsockopt(SO_PASSCRED): ") + strerror(errno));
  }
  Fd memory;
  std::shared_ptr<Segment> segment;
  if (creator) {
    Result<std::shared_ptr<Segment>> made = Segment::createShared(options.ring_bytes, memory);
    if (!made.isOk()) return made.status();
    segment = made.value();
  }
  if (options.allow_cma) permitReads();
  const auto word =
      std::make_unique<uint64_t>(static_cast<uint64_t>(clock.nowNs()) ^ reinterpret_cast<uint64_t>(&meeting));
  Hello mine;
  mine.ring_bytes = options.ring_bytes;
  mine.probe_address = reinterpret_cast<uint64_t>(word.get());
  mine.probe_word = *word;
  mine.allow_cma = options.allow_cma ? 1 : 0;
  mine.is_creator = creator ? 1 : 0;
  Hello peer;
  JHETCC_RETURN_IF_ERROR(meeting.sendAll(&mine, sizeof mine, memory.get()));
  JHETCC_RETURN_IF_ERROR(meeting.receiveAll(&peer, sizeof peer));
  JHETCC_RETURN_IF_ERROR(checkHello(meeting, mine, peer));
  if (!creator) {
    Result<std::shared_ptr<Segment>> mapped = Segment::map(meeting.received, peer.ring_bytes);
    if (!mapped.isOk()) return mapped.status().withContext("shm " + description);
    segment = mapped.value();
  }
  std::string why_not = "switched off";
  if (mine.allow_cma != 0 && peer.allow_cma != 0) why_not = probe(meeting.peer_pid, peer);
  // The probed word stays until the peer has read it, and both know that the other has mapped the segment.
  uint8_t ready = 1;
  JHETCC_RETURN_IF_ERROR(meeting.sendAll(&ready, 1, -1));
  JHETCC_RETURN_IF_ERROR(meeting.receiveAll(&ready, 1));
  const int off = 0;
  (void)setsockopt(meeting.socket, SOL_SOCKET, SO_PASSCRED, &off, sizeof off);

  Parts parts;
  parts.segment = std::move(segment);
  parts.side = creator ? 0 : 1;
  parts.reads = why_not.empty() ? Reads::kPeerMemory : Reads::kThroughRing;
  parts.peer_pid = meeting.peer_pid;
  parts.description = describe(description, meeting.peer_pid, why_not);
  parts.names = std::move(description);
  parts.clock = &clock;
  parts.bell = makeSocketBell(std::move(unix_socket));
  return std::unique_ptr<Endpoint>(std::make_unique<ShmEndpoint>(std::move(parts)));
}

}  // namespace jhetcc::transport::shm
