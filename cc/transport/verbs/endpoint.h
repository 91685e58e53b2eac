// SPDX-License-Identifier: Apache-2.0
// One end of a queue pair. One thread.
//
// Frames and pieces of payloads are bytes of a ring: the producer keeps a copy of the peer's, writes what is new into
// the same place there, and each message says by its immediate how many units it published and how many of the peer's
// were read. A piece of a registered payload leaves its place in the copy empty and is gathered from where it lies. The
// consumer copies pieces to their destination, so nothing of the peer's ever writes there.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "net/framing.h"
#include "transport/offers.h"
#include "transport/verbs/link.h"
#include "transport/verbs/memory.h"
#include "transport/verbs/ring.h"

namespace jhetcc::transport::verbs {

class VerbsEndpoint final : public Endpoint {
 public:
  VerbsEndpoint(Fd socket, std::unique_ptr<Link> link, const Options& options, std::string description,
                const Clock& clock);
  ~VerbsEndpoint() override;
  /// Tells the other end what is here.
  Status start();

  Result<bool> send(const FrameHeader& header, const void* payload) override;
  Result<bool> fetch(const FrameHeader& offer, void* destination, uint64_t token) override;
  void cancel(uint64_t token) override;
  void revoke(uint64_t cookie) override;
  Status poll(EventSink& sink) override;
  int waitDescriptor() const override { return has_ended_ ? -1 : epoll_.get(); }
  bool prepareSleep(bool in_operation) override;
  bool wantsWrite() const override;
  int64_t unansweredNs(int64_t now_ns) override;
  Answered answered() override;
  bool seesDevices() const override { return true; }
  const char* transportName() const override { return "verbs"; }
  const std::string& description() const override { return description_; }

 private:
  /// A payload that the peer asked for.
  struct Request {
    uint64_t cookie;
    uint64_t fetch;
    uint64_t sent = 0;
    const abi::Mr* mr = nullptr;  ///< registered: pieces are gathered from there
    bool is_copied = false;       ///< decided: pieces are copied
    bool is_taken = false;        ///< the peer said so
    uint64_t last_wr = 0;         ///< of its last piece posted so far
    bool isWhole(uint64_t length) const { return sent == length && last_wr > 0; }  ///< all of it is posted
  };
  struct Fetch {
    uint64_t id;
    uint64_t token;
    uint8_t* destination;
    uint64_t length;
    uint64_t received = 0;
  };
  struct Posting {
    uint64_t wr;
    int64_t at_ns;
    uint64_t bytes;  ///< of all up to this one
  };
  static constexpr int kChain = 16;

  // send.cc
  void queueInternal(FrameType type, uint64_t cookie, uint64_t address);
  bool flushInternal();
  void flush();
  bool mayStage(uint32_t count) const;
  abi::SendWr* stage(uint64_t bytes, uint32_t what = abi::kWriteWithImmediate);
  void probeIfSilent();
  void signal(abi::SendWr& wr);
  void stageRange();
  bool stageRanges();
  void stageGathered(const uint8_t* payload, uint64_t length, const abi::Mr& mr);
  void stageCredit();
  void ringDoorbell();
  void serve();
  bool servePiece(Request& request, const OpenOffer& offer);
  void openMemory(Request& request, const OpenOffer& offer);
  void releaseWhole();
  void drain(uint64_t wr);
  void endRequest(size_t place);

  // receive.cc
  void meet();
  void reap();
  void onCompletion(const abi::Wc& wc);
  void receive(EventSink& sink);
  void handle(const FrameHeader& header, const uint8_t* payload, EventSink& sink);
  void takePiece(const FrameHeader& header, const uint8_t* payload, EventSink& sink);
  void onTaken(uint64_t fetch);
  void endFetch(uint64_t id, EventSink& sink);
  void report(EventSink& sink);
  void lookAround();
  void hearSocket();
  void hearDevice();
  void endWith(Status why);
  void fail(const std::string& what);
  Status lost(const std::string& what) const;

  Fd socket_;
  Fd epoll_;
  std::unique_ptr<Link> link_;
  const Options options_;
  std::string description_;
  const Clock& clock_;
  OfferTable offers_;
  OfferedMemory memory_;

  enum class Phase { kHello, kReady, kOpen } phase_ = Phase::kHello;  ///< what is still to be heard on the socket
  net::MessageReader reader_;
  OutRing out_;
  std::vector<FrameHeader> internal_;  ///< own frames that found no room
  std::vector<Request> requests_;      ///< served in turn; whole ones stay until their bytes are there
  size_t turn_ = 0;
  uint64_t solicited_ = 0;          ///< unposted bytes of the ring that a sleeping peer has to be woken for, 0: none
  std::vector<uint64_t> released_;  ///< to be reported by the next poll

  abi::SendWr chain_[kChain];
  abi::Sge sges_[kChain][3];
  int chained_ = 0;
  uint64_t staged_wr_ = 0;  ///< work requests staged, the last one's id
  uint64_t done_wr_ = 0;    ///< completed up to this one
  uint64_t staged_bytes_ = 0;
  uint64_t unsignaled_bytes_ = 0;
  std::deque<Posting> postings_;  ///< signaled and not completed
  Answered answered_;
  int64_t busy_since_ns_ = 0;
  int64_t answered_ns_ = 0;  ///< when the last one completed

  InRing in_;
  int64_t heard_ns_ = 0;  ///< when the last completion came, of anything
  std::vector<Fetch> fetches_;
  uint64_t next_fetch_ = 1;
  uint32_t receives_owed_ = 0;
  uint32_t polls_ = 0;
  bool is_refused_ = false;    ///< the last send() found no room
  bool has_news_ = false;      ///< completions came that no poll has acted on
  std::string port_note_;      ///< of the device's events, for errors
  bool said_goodbye_ = false;  ///< the peer did
  bool has_ended_ = false;
  Status end_;  ///< what is in the ring comes first
  Status broken_;
};

}  // namespace jhetcc::transport::verbs
