// SPDX-License-Identifier: Apache-2.0
// What a kernel says of a connection, look after look, and when that means that the other host does not answer.
#include <doctest/doctest.h>

#include <algorithm>

#include "base/clock.h"
#include "transport/tcp/health.h"

namespace jhetcc::transport::tcp::testing {

namespace {

constexpr int64_t kMs = kNsPerMs;

/// A connection on a clock of its own; each look comes 10 ms after the last.
struct Line {
  Facts facts;
  Silence silence;
  int64_t now_ns = 1000 * kMs, answered_ns = 1000 * kMs, sent_ns = 1000 * kMs;

  Line() {
    facts.round_trip_ns = kMs / 10;
    facts.timer_ns = 200 * kMs;
  }
  int64_t look(int64_t after_ns = 10 * kMs) {
    now_ns += after_ns;
    facts.last_answer_ns = now_ns - answered_ns;
    facts.last_sent_ns = now_ns - sent_ns;
    return silence.at(facts, now_ns);
  }
  int64_t longest(int64_t for_ns) {
    int64_t longest_ns = 0;
    for (const int64_t end_ns = now_ns + for_ns; now_ns < end_ns;) longest_ns = std::max(longest_ns, look());
    return longest_ns;
  }
  void send() { sent_ns = now_ns; }
  void answer(uint64_t bytes) {
    answered_ns = now_ns;
    facts.acked_bytes += bytes;
  }
};

}  // namespace

TEST_CASE("bytes under way that are not answered are a silence as long as that lasts") {
  Line line;
  CHECK(line.look() == 0);
  line.facts.unacked = 3;
  CHECK(line.look() == 1);
  CHECK(line.longest(300 * kMs) > 290 * kMs);
  line.answer(1000);
  CHECK(line.look() == 1);
  line.facts.unacked = 0;
  CHECK(line.look() == 0);
}

TEST_CASE("who did not look for a while and finds new bytes under way has not been left unanswered") {
  Line line;
  line.facts.unacked = 1;
  CHECK(line.look() == 1);
  line.answer(1000);  // a moment later; then this process does not run, and sends as soon as it does
  CHECK(line.look(400 * kMs) == 1);
  CHECK(line.look() < 11 * kMs);
}

TEST_CASE("a peer without room refuses what is sent again and again: no silence, however seldom that is") {
  Line line;
  line.facts.unacked = 5;
  line.facts.is_shut = line.facts.may_be_shut = true;
  for (int64_t apart_ns = 200 * kMs; apart_ns < 20'000 * kMs; apart_ns *= 2) {
    line.send();
    line.answer(0);
    CHECK(line.longest(apart_ns) == 1);
  }
  line.now_ns += kMs;
  line.send();  // and is gone
  CHECK(line.longest(400 * kMs) > 380 * kMs);
}

TEST_CASE("probes of a shut window: one that the peer's kernel thinks too soon is no silence, one that gets lost is") {
  Line line;
  line.facts.unsent_bytes = 100'000;
  line.facts.is_shut = line.facts.may_be_shut = true;
  CHECK(line.longest(200 * kMs) == 1);
  for (uint32_t backoff = 1; backoff < 8; ++backoff) {
    line.facts.probes = 1;
    line.facts.backoff = backoff;
    CHECK(line.longest(backoff < 3 ? (200 * kMs) << backoff : 20 * kMs) < 100 * kMs);
    line.answer(0);
    line.facts.probes = 0;
    CHECK(line.longest((200 * kMs) << backoff) == 1);
  }
  line.facts.probes = 1;
  CHECK(line.longest(1500 * kMs) > 400 * kMs);
}

TEST_CASE("nothing is under way because the system sends nothing") {
  Line line;
  line.facts.unsent_bytes = 100'000;
  line.facts.probes = 2;  // its own queues were full: other traffic takes its turn
  CHECK(line.longest(2000 * kMs) == 1);
  line.facts.probes = 3;  // for long
  CHECK(line.longest(300 * kMs) > 280 * kMs);
  line.answer(0);
  line.facts.probes = 1;
  line.facts.backoff = 1;  // no route
  CHECK(line.longest(300 * kMs) > 280 * kMs);
}

TEST_CASE("a kernel that does not tell the window") {
  Line line;
  line.facts.may_be_shut = true;
  line.facts.unsent_bytes = 1000;
  line.facts.probes = line.facts.backoff = 1;
  CHECK(line.longest(400 * kMs) < 100 * kMs);
  line.facts.unacked = 1;
  CHECK(line.longest(400 * kMs) > 300 * kMs);
}

}  // namespace jhetcc::transport::tcp::testing
