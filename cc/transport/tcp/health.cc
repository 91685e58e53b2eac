// SPDX-License-Identifier: Apache-2.0
// What the kernel knows of a connection: whether the peer's kernel answers, and how fast it took what was sent. Its
// process may be asleep meanwhile. One thread.
#include "transport/tcp/health.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/clock.h"
#include "transport/tcp/endpoint.h"

namespace jhetcc::transport::tcp {

namespace {

/// Where newer kernels (Linux 5.4) tell the peer's window; older headers do not name it.
constexpr size_t kWindowAt = 228;
/// A kernel answers probes of a shut window no more often than every half second.
constexpr int64_t kProbesApartNs = 1'000 * kNsPerMs;
constexpr uint32_t kBackoffMax = 4;
constexpr uint32_t kCrowdedTries = 2;  ///< half a second apart

struct Told {
  tcp_info info{};
  uint32_t window_bytes = 0;
  bool has_window = false;
};

/// False: the socket is none of TCP's, or the kernel is older than what is asked (Linux 4.10).
bool ask(int socket, Told* told) {
  uint8_t bytes[512] = {};
  socklen_t size = sizeof bytes;
  if (getsockopt(socket, IPPROTO_TCP, TCP_INFO, bytes, &size) != 0) return false;
  if (size < offsetof(tcp_info, tcpi_sndbuf_limited) + sizeof told->info.tcpi_sndbuf_limited) return false;
  std::memcpy(&told->info, bytes, sizeof told->info);
  told->has_window = size >= kWindowAt + sizeof told->window_bytes;
  if (told->has_window) std::memcpy(&told->window_bytes, bytes + kWindowAt, sizeof told->window_bytes);
  return true;
}

Facts factsOf(const Told& told) {
  const tcp_info& info = told.info;
  Facts facts;
  facts.acked_bytes = info.tcpi_bytes_acked;
  facts.unacked = info.tcpi_unacked;
  facts.unsent_bytes = info.tcpi_notsent_bytes;
  // Where nothing is under way, a window too small for what is next is as good as none.
  const uint32_t next = info.tcpi_unacked > 0 ? 1 : std::min(info.tcpi_snd_mss, info.tcpi_notsent_bytes);
  facts.is_shut = told.has_window && told.window_bytes < next;
  facts.may_be_shut = facts.is_shut || !told.has_window;
  facts.probes = info.tcpi_probes;
  facts.backoff = info.tcpi_backoff;
  facts.timer_ns = int64_t{info.tcpi_rto} * 1000;
  facts.last_answer_ns = int64_t{info.tcpi_last_ack_recv} * kNsPerMs;
  facts.last_sent_ns = int64_t{info.tcpi_last_data_sent} * kNsPerMs;
  facts.round_trip_ns = int64_t{info.tcpi_rtt} * 1000;
  facts.deviation_ns = int64_t{info.tcpi_rttvar} * 1000;
  return facts;
}

}  // namespace

int64_t Silence::at(const Facts& facts, int64_t now_ns) {
  const bool is_new = std::exchange(acked_bytes_, facts.acked_bytes) != facts.acked_bytes;
  if (facts.unacked == 0 && facts.unsent_bytes == 0) {
    since_ns_ = 0;
    return 0;
  }
  int64_t usual_ns = 2 * facts.round_trip_ns + 4 * facts.deviation_ns;  // one more, for what is sent a second time
  bool is_owed = facts.unacked > 0;
  if (facts.unacked == 0) {
    // The window is shut, or the system sends nothing at all, as where a route is gone. Where its queues are full it
    // does not put off the next try; others' traffic may have filled them, for a while.
    is_owed = facts.probes > (facts.backoff > 0 ? 0 : kCrowdedTries);
    const int64_t next_ns = facts.timer_ns << std::min(facts.backoff, kBackoffMax);
    if (facts.may_be_shut) usual_ns += std::min(next_ns, kProbesApartNs);
  } else if (facts.is_shut) {
    // The peer had no room for it. It is sent again ever more seldom, and refused again.
    is_owed = facts.last_sent_ns < facts.last_answer_ns;
  }
  if (!is_owed) {
    since_ns_ = 0;
    return 1;
  }
  // What was owed at the last look is not what is owed now, if anything was answered between.
  if (since_ns_ == 0 || is_new) since_ns_ = now_ns;
  return std::max<int64_t>(1, std::min(now_ns - since_ns_, facts.last_answer_ns) - usual_ns);
}

int64_t TcpEndpoint::unansweredNs(int64_t now_ns) {
  Told told;
  return ask(socket_.get(), &told) ? silence_.at(factsOf(told), now_ns) : 0;
}

Answered TcpEndpoint::answered() {
  Told told;
  if (!ask(socket_.get(), &told)) return {};
  // Time in which the peer's window was shut says nothing of the path.
  const uint64_t open_us = told.info.tcpi_busy_time - told.info.tcpi_rwnd_limited;
  return {told.info.tcpi_bytes_acked, static_cast<int64_t>(open_us) * 1000};
}

}  // namespace jhetcc::transport::tcp
