// SPDX-License-Identifier: Apache-2.0
// Whether a peer's kernel leaves bytes of ours unanswered. Its process may be asleep, and its window shut: then there
// is nothing to answer for most of the time, and silence says nothing. One thread.
#pragma once

#include <cstdint>

namespace jhetcc::transport::tcp {

/// Of one connection, as the kernel tells it. Times are ages.
struct Facts {
  uint64_t acked_bytes = 0;    ///< since the connection began
  uint32_t unacked = 0;        ///< segments under way
  uint32_t unsent_bytes = 0;   ///< the kernel keeps them back
  bool is_shut = false;        ///< the peer said last that it takes nothing
  bool may_be_shut = false;    ///< and so it is, where this kernel does not tell
  uint32_t probes = 0;         ///< sent while nothing is under way, and unanswered
  uint32_t backoff = 0;        ///< how often the kernel's next try was put off; not where its own queues were full
  int64_t timer_ns = 0;        ///< of its next try, before that
  int64_t last_answer_ns = 0;  ///< anything that acknowledges, though it be nothing new
  int64_t last_sent_ns = 0;    ///< data, the first time or again
  int64_t round_trip_ns = 0;
  int64_t deviation_ns = 0;  ///< of that
};

class Silence {
 public:
  /// How long bytes have waited for an answer that should have come; 1: some are under way; 0: none are.
  int64_t at(const Facts& facts, int64_t now_ns);

 private:
  int64_t since_ns_ = 0;  ///< 0: when last looked at, nothing was owed
  uint64_t acked_bytes_ = 0;
};

}  // namespace jhetcc::transport::tcp
