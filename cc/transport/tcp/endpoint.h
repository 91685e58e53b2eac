// SPDX-License-Identifier: Apache-2.0
// One end of a connection. One thread.
//
// On the wire: headers, each followed by its inline payload. A payload travels as data frames, told complete by a done
// frame only: so the owner may withdraw it in the middle, fill the frame with zeros and say "refused". It begins when
// the receiver asks for it, or, as far as kPushBytes reach, right behind its offer: a push, which a frame before the
// offer announces. What is pushed before the receiver gives it a place waits in memory of the endpoint. Either way the
// offer stays open until the receiver has all of it in its place. A short push is copied, and leaves in one piece with
// its offer.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "transport/offers.h"
#include "transport/tcp/health.h"
#include "transport/tcp/tcp.h"

struct iovec;

namespace jhetcc::transport::tcp {

/// Frames of this transport's own. `cookie` is the number of the fetch or push, in a request and a push the offer.
constexpr FrameType kFetchRequest = FrameType{0x82};  ///< address: number of the fetch
constexpr FrameType kFetchData = FrameType{0x83};     ///< address: offset; `length` bytes follow
constexpr FrameType kFetchDone = FrameType{0x85};
constexpr FrameType kFetchRefused = FrameType{0x84};
constexpr FrameType kPush = FrameType{0x86};   ///< address: number of the push; `length` bytes will come
constexpr FrameType kTaken = FrameType{0x87};  ///< all of it is in its place, or not wanted any more

/// Set in the numbers of pushes, which the sender gives; the receiver gives those of fetches.
constexpr uint64_t kPushBit = uint64_t{1} << 63;
/// Pushed and not yet taken, at most, in one direction: what a receiver that looks elsewhere must keep.
constexpr uint64_t kPushBytes = 2 * 1024 * 1024;

class TcpEndpoint final : public Endpoint {
 public:
  TcpEndpoint(Fd socket, const Options& options, std::string description, std::shared_ptr<net::TlsSession> tls);

  Result<bool> send(const FrameHeader& header, const void* payload) override;
  Result<bool> fetch(const FrameHeader& offer, void* destination, uint64_t token) override;
  void cancel(uint64_t token) override;
  void revoke(uint64_t cookie) override;
  Status poll(EventSink& sink) override;
  int waitDescriptor() const override { return has_ended_ ? -1 : socket_.get(); }
  bool prepareSleep(bool in_operation) override;
  bool wantsWrite() const override;
  int64_t unansweredNs(int64_t now_ns) override;
  Answered answered() override;
  const char* transportName() const override { return "tcp"; }
  const std::string& description() const override { return description_; }

 private:
  struct Request {
    uint64_t cookie;
    uint64_t fetch;
    uint64_t sent;
    bool is_void = false;  ///< refused already; its data frame goes on
  };
  /// A payload that the peer has yet to say it took.
  struct Sent {
    uint64_t id;  ///< of the push or the fetch
    uint64_t cookie;
    uint64_t pushed;  ///< bytes that count against the bound of pushes
    bool is_whole;    ///< all of it is written
  };
  /// The data frame that is being written.
  struct Outgoing {
    bool is_active = false;
    bool is_void = false;  ///< withdrawn: zeros take the place of the rest
    uint64_t ahead = 0;    ///< bytes of the send buffer that come first
    FrameHeader header;
    uint64_t header_sent = 0;
    const uint8_t* source = nullptr;
    uint64_t length = 0;
    uint64_t sent = 0;
    bool is_last = false;  ///< the done frame follows in the same breath, unless it is withdrawn before
    FrameHeader done;
    uint64_t done_sent = 0;
  };
  struct Fetch {
    uint64_t id;
    uint64_t token = 0;
    uint8_t* destination = nullptr;
    uint64_t length = 0;
    uint64_t received = 0;
    // Of a push only.
    uint64_t cookie = 0;
    enum class Place { kGiven, kMissing, kRefused } place = Place::kGiven;
    std::unique_ptr<uint8_t[]> early = nullptr;  ///< what comes while the place is missing
    bool is_whole = false;
  };
  /// The data frame that is being read.
  struct Incoming {
    uint64_t fetch = 0;
    uint8_t* place = nullptr;  ///< null: dropped
    uint64_t left = 0;
  };

  // send.cc
  bool append(const FrameHeader& header, const void* payload, uint64_t payload_bytes);
  void queueInternal(FrameType type, uint64_t cookie, uint64_t address);
  bool flushInternal();
  void flush();
  bool startData();
  int gather(iovec* pieces) const;
  void written(uint64_t bytes);
  bool sendsDone() const { return data_.is_last && (!data_.is_void || data_.done_sent > 0); }
  void finishData();
  void refuse(uint64_t fetch);
  void closeOffer(int slot);
  bool mayPush(uint64_t length) const;
  void push(const FrameHeader& offer, bool is_copied);
  void forgetSent(uint64_t id);
  void onTaken(uint64_t id);
  uint64_t queued() const { return out_end_ - out_begin_; }

  // receive.cc
  void receive(EventSink& sink);
  bool parse(EventSink& sink, uint64_t* frames, uint64_t* bytes);
  uint64_t takeIncoming(const uint8_t* data, uint64_t bytes);
  void handle(const FrameHeader& header, const uint8_t* payload, EventSink& sink);
  void beginPush(const FrameHeader& header);
  bool takeEarly(Fetch& push, void* destination, uint64_t token);
  Fetch* findFetch(uint64_t id);
  void beginIncoming(const FrameHeader& header);
  void endFetch(uint64_t id, bool is_refused, EventSink& sink);
  bool readSome(bool* is_drained, uint64_t* bytes);
  bool hasWholeFrame() const;
  uint64_t buffered() const { return in_end_ - in_begin_; }
  void fail(const std::string& what);
  Status lost(const std::string& what, int error) const;

  // tls.cc
  ssize_t sendTls(const iovec* pieces, size_t count);
  ssize_t receiveTls(const iovec* pieces, size_t count);

  Fd socket_;
  std::shared_ptr<net::TlsSession> tls_;  ///< null: in the clear
  std::unique_ptr<uint8_t[]> record_;     ///< small pieces that make one record of TLS
  const Options options_;
  std::string description_;
  OfferTable offers_;

  std::vector<uint8_t> out_;
  uint64_t out_begin_ = 0;
  uint64_t out_end_ = 0;
  uint64_t room_refused_ = 0;          ///< bytes that send() found no room for
  std::vector<FrameHeader> internal_;  ///< own frames that found no room in the send buffer
  std::vector<Request> requests_;      ///< payloads to be sent, served in turn; the front one is being written
  std::vector<Sent> sent_;             ///< pushed, or fetched to the end; not yet taken
  uint64_t pushed_bytes_ = 0;          ///< of the former together
  uint64_t next_push_ = kPushBit | 1;
  Outgoing data_;
  std::vector<uint64_t> released_;  ///< to be reported by the next poll
  Status write_error_;              ///< what the peer sent before comes first

  std::vector<uint8_t> in_;
  uint64_t in_begin_ = 0;
  uint64_t in_end_ = 0;
  std::vector<Fetch> fetches_;
  Incoming incoming_;
  uint64_t next_fetch_ = 1;
  uint64_t waited_for_ = 0;  ///< the push whose place a poll was ended for
  Silence silence_;
  bool said_goodbye_ = false;  ///< the peer did
  bool has_ended_ = false;
  Status end_;  ///< end of the stream; what is buffered comes first
  Status broken_;
};

}  // namespace jhetcc::transport::tcp
