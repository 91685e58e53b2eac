// SPDX-License-Identifier: Apache-2.0
// What the kernel knows of a connection: whether the peer's kernel answers, and how fast it took what was sent. Its
// process may be asleep meanwhile. One thread.
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>

#include "base/clock.h"
#include "transport/tcp/endpoint.h"

namespace jhetcc::transport::tcp {

namespace {

/// False: the socket is none of TCP's, or the kernel is older than what is asked (Linux 4.10).
bool ask(int socket, tcp_info* info) {
  socklen_t size = sizeof *info;
  return getsockopt(socket, IPPROTO_TCP, TCP_INFO, info, &size) == 0 &&
         size >= offsetof(tcp_info, tcpi_sndbuf_limited) + sizeof info->tcpi_sndbuf_limited;
}

}  // namespace

int64_t TcpEndpoint::unansweredNs(int64_t now_ns) {
  tcp_info info{};
  if (!ask(socket_.get(), &info) || info.tcpi_unacked == 0) {
    unanswered_since_ns_ = 0;
    return 0;
  }
  if (unanswered_since_ns_ == 0) unanswered_since_ns_ = now_ns;
  const int64_t silent_ns =
      std::min<int64_t>(now_ns - unanswered_since_ns_, int64_t{info.tcpi_last_ack_recv} * kNsPerMs);
  const int64_t usual_ns = (int64_t{info.tcpi_rtt} + 4 * int64_t{info.tcpi_rttvar}) * 1000;
  return std::max<int64_t>(1, silent_ns - usual_ns);
}

Answered TcpEndpoint::answered() {
  tcp_info info{};
  if (!ask(socket_.get(), &info)) return {};
  // Time in which the peer's window was shut says nothing of the path.
  return {info.tcpi_bytes_acked, static_cast<int64_t>(info.tcpi_busy_time - info.tcpi_rwnd_limited) * 1000};
}

}  // namespace jhetcc::transport::tcp
