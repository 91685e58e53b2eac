// SPDX-License-Identifier: Apache-2.0
// One end over a shared segment. Everything but the segment belongs to the endpoint's thread.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "transport/shm/bell.h"
#include "transport/shm/ring.h"
#include "transport/shm/roads.h"
#include "transport/shm/shm.h"
#include "transport/shm/stage.h"

namespace jhetcc::transport::shm {

/// How this end gets at an offered payload.
enum class Reads : uint8_t {
  kLocal,        ///< the peer's memory is ours
  kPeerMemory,   ///< process_vm_readv, or staged by the peer where that is faster
  kThroughRing,  ///< not at all: the peer always stages them
};

struct Parts {
  std::shared_ptr<Segment> segment;
  int side = 0;
  std::unique_ptr<Bell> bell;
  Reads reads{};
  pid_t peer_pid = 0;
  std::string names;  ///< of the two places; what `description` begins with
  std::string description;
  const Clock* clock = nullptr;
};

/// Between two processes. `why_not`: why the peer's memory is not read; empty where it is.
std::string describe(const std::string& names, pid_t peer_pid, const std::string& why_not);

class ShmEndpoint final : public Endpoint {
 public:
  explicit ShmEndpoint(Parts parts);
  ~ShmEndpoint() override;

  Result<bool> send(const FrameHeader& header, const void* payload) override;
  Result<bool> fetch(const FrameHeader& offer, void* destination, uint64_t token) override;
  void cancel(uint64_t token) override;
  void revoke(uint64_t cookie) override;
  Status poll(EventSink& sink) override;
  int waitDescriptor() const override { return has_ended_ ? -1 : parts_.bell->descriptor(); }
  bool prepareSleep(bool in_operation) override;
  bool wantsWrite() const override { return false; }
  int peerCpu() const override { return peers_.cpu.load(std::memory_order_relaxed) - 1; }
  bool seesDevices() const override { return true; }
  const char* transportName() const override { return "shm"; }
  const std::string& description() const override { return parts_.description; }

 private:
  struct Fetch {
    uint64_t id = 0;
    uint64_t token = 0;
    uint8_t* destination = nullptr;
    uint64_t length = 0;
    uint64_t done = 0;
    uint64_t address = 0;  ///< in the peer
    uint64_t cookie = 0;
    int64_t spent_ns = 0;  ///< by processors, here and at the peer, on copying
    bool is_refused = false;
    bool is_long = false;  ///< deep in a stream of payloads
    bool is_staged = false;
    Road road = Road::kRead;  ///< the one chosen; where the peer cannot be read, that one is staged, too
  };
  struct Request {
    uint64_t cookie;
    uint64_t fetch;
    uint64_t sent;
    bool past_caches;
  };
  enum class Pulled : uint8_t { kBytes, kRefused, kForbidden, kPeerGone };

  // endpoint.cc
  void receive(EventSink& sink);
  void handle(const FrameHeader& header, const uint8_t* payload, EventSink& sink);
  void wake(uint32_t reason);
  void publishRoom();
  void checkPeer();
  bool flushInternal();
  void queueInternal(FrameType type, uint64_t cookie, uint64_t address, uint8_t flags = 0);
  void fail(const std::string& what);
  uint64_t roomWanted() const;

  // fetch.cc
  void askForStaging(Fetch& fetch);
  void noteCost(const Fetch& fetch);
  Pulled pullSlice(Fetch& fetch);
  Pulled copyLocal(Fetch& fetch, uint64_t bytes);
  Pulled readPeer(Fetch& fetch, uint64_t bytes);
  void stopReading(const std::string& why);
  OfferSlot* peerSlot(uint64_t cookie) const;
  void continuePulls(EventSink& sink);
  void serveRequests(EventSink& sink);
  void takeFetchData(const FrameHeader& header, EventSink& sink);
  void endFetch(size_t position, Status status, EventSink& sink);
  void closeOffer(int slot);
  Status refusal() const;

  Parts parts_;
  SideControl& mine_;
  SideControl& peers_;
  Producer out_;
  Consumer in_;
  OfferTable offers_;
  std::vector<Fetch> fetches_;
  std::vector<Request> requests_;
  Stage stage_out_;
  Stage stage_in_;
  RoadChoice roads_;
  std::vector<FrameHeader> internal_;  ///< own frames that wait for room
  size_t internal_sent_ = 0;
  uint64_t next_fetch_ = 1;
  uint64_t room_refused_ = 0;  ///< bytes that send() found no room for
  bool has_knocked_ = false;   ///< for something urgent that found none
  uint32_t empty_polls_ = 0;
  int64_t checked_ns_ = 0;
  int cpu_said_ = -1;
  bool is_asleep_ = false;
  bool said_goodbye_ = false;  ///< the peer did
  bool has_ended_ = false;
  Status gone_;  ///< the peer is gone; what it left in the ring comes first
  Status broken_;
};

}  // namespace jhetcc::transport::shm
