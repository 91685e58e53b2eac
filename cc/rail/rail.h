// SPDX-License-Identifier: Apache-2.0
// Everything between this rank and one peer, as one endpoint that says once when it breaks.
// Single-threaded: the engine that owns it serialises all calls.
#pragma once

#include <deque>
#include <memory>
#include <string>

#include "base/status.h"
#include "transport/transport.h"

namespace jhetcc::rail {

class Bundle;

class Rail {
 public:
  Rail(int32_t peer, std::unique_ptr<transport::Endpoint> endpoint);

  int32_t peer() const { return peer_; }
  bool isBroken() const { return !broken_.isOk(); }
  /// Why it broke; code "left" when the peer said goodbye first.
  const Status& brokenStatus() const { return broken_; }
  /// The peer closes on purpose. It is gone from now on, though its connection may stay up as long as its process
  /// lives.
  void peerSaidGoodbye();

  /// A message of an operation. False: no room now (or broken), nothing was taken.
  bool trySend(const transport::FrameHeader& header, const void* payload);
  /// A control message: kept until there is room; lost only with the path.
  void sendControl(const transport::FrameHeader& header, const void* payload);
  /// False: onFetched follows, or the rail is broken.
  bool fetch(const transport::FrameHeader& offer, void* destination, uint64_t token);
  void cancel(uint64_t token) { endpoint_->cancel(token); }
  void revoke(uint64_t cookie) { endpoint_->revoke(cookie); }

  /// One bounded pass. True exactly once: the rail broke during this pass or since the last.
  bool poll(transport::EventSink& sink);

  /// Control messages (and the endpoint's own output) still on their way out.
  bool hasOutput() const { return !isBroken() && (!control_.empty() || endpoint_->wantsWrite()); }
  /// What was said, a goodbye above all, may still have to go again over another path.
  bool hasUnacknowledged() const;
  /// Broken, but the peer may not know yet that its goodbye has come.
  bool hearsGoodbyes() const;
  transport::Endpoint& endpoint() { return *endpoint_; }
  /// Where the pair has several paths; else null.
  Bundle* bundle() const { return bundle_; }
  /// The peer's host is there, and not by way of a third rank.
  bool isDirect() const;

 private:
  struct Control {
    transport::FrameHeader header;
    std::string payload;
  };
  void breakWith(const Status& why);
  void flushControl();

  const int32_t peer_;
  std::unique_ptr<transport::Endpoint> endpoint_;
  Bundle* const bundle_;
  std::deque<Control> control_;
  Status broken_;
  bool left_ = false;
  bool break_reported_ = false;
};

}  // namespace jhetcc::rail
