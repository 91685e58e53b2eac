// SPDX-License-Identifier: Apache-2.0
// Ranks that no path joins any more reach each other by a third one: a stream of bytes in messages that it passes on.
// The stream is one more path of their bundle. Belongs to one engine, under its lock.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "rail/rail.h"

namespace jhetcc::rail {

class Relays {
 public:
  /// Makes an endpoint of a connected stream socket.
  using MakeEndpoint = std::function<Result<std::unique_ptr<transport::Endpoint>>(Fd, const std::string& description)>;

  Relays(int32_t self, const Clock& clock, const std::vector<std::unique_ptr<Rail>>& rails, MakeEndpoint make)
      : self_(self), clock_(clock), rails_(rails), make_(std::move(make)) {}

  /// A message of type kRelay that came over this rail.
  void onFrame(Rail& from, const transport::FrameHeader& header, const void* payload);
  /// `left`: it said goodbye, and waits for the word that this was heard.
  void onRailBroken(int32_t peer, bool left);
  /// Opens what is needed; now and then.
  void look();
  /// Moves what can be moved. True: something was.
  bool pump();
  /// Others reach each other by way of this rank.
  bool isNeeded() const { return !passed_.empty() || !passing_.empty(); }
  /// Something that this rank said has not been handed to the third one yet.
  bool hasOutput() const;

 private:
  struct Link {
    int32_t peer, via;
    uint64_t id;
    Fd socket;
    std::vector<uint8_t> out = {};  ///< read from the socket, not taken by the rail yet
    uint64_t sent = 0, confirmed = 0;
    std::deque<std::vector<uint8_t>> in = {};  ///< for the socket
    size_t in_offset = 0;
    uint64_t written = 0, told = 0;
    bool is_closed = false;
  };
  struct Passing {
    transport::FrameHeader header;
    std::vector<uint8_t> payload;
  };
  /// Two for which this rank passes on.
  struct Passed {
    int32_t opener, other;
    uint64_t id;  ///< the opener's
  };
  /// Of a peer that this rank opens relays to.
  struct Attempt {
    int32_t peer;
    size_t next_via = 0;
    int64_t not_before_ns = 0;
  };

  void leaveSilent();
  Rail* railTo(int32_t peer) const;
  Link* find(int32_t peer, uint64_t id);
  bool open(Rail& to, int32_t via, uint64_t id, bool opened_here);
  bool tell(Link& link, uint8_t what, uint64_t number);
  void pass(Rail& from, const transport::FrameHeader& header, const void* payload);
  bool pumpOut(Link& link);
  bool pumpIn(Link& link);
  void answerClosed(Rail& from, const transport::FrameHeader& header);

  const int32_t self_;
  const Clock& clock_;
  const std::vector<std::unique_ptr<Rail>>& rails_;
  const MakeEndpoint make_;
  std::list<Link> links_;
  std::deque<Passing> passing_;  ///< for others; no more than they may have under way
  std::vector<Passed> passed_;
  std::vector<Attempt> attempts_;
  uint64_t next_id_ = 1;
};

}  // namespace jhetcc::rail
