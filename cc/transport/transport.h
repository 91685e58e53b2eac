// SPDX-License-Identifier: Apache-2.0
// The seam to every way of moving bytes between two ranks: one endpoint per rank pair and transport.
// An endpoint is passive and single-threaded: its owner (a rail) serialises all calls and polls it.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>

#include "base/status.h"

namespace jhetcc::transport {

enum class FrameType : uint8_t {
  kData = 1,     ///< a message of an operation, payload inline
  kOffer = 2,    ///< a message of an operation, payload waits in the sender's memory to be fetched
  kControl = 3,  ///< a message of the control plane (abort, probes, shrink), payload inline
  kGoodbye = 4,  ///< the peer closes on purpose; no more frames follow
  kRail = 5,     ///< a message of a rail of several paths, payload inline; it wraps one of the others
  kRelay = 6,    ///< bytes between two other ranks, or one of them and this one; payload inline
  // 0x80 and above belong to the transports themselves and never reach a sink
};

/// Travels in front of every message on every transport. Transports read type, length, address and cookie only.
struct FrameHeader {
  FrameType type{};
  uint8_t flags = 0;
  uint16_t stream = 0;        ///< stream of the schedule
  uint32_t index = 0;         ///< k-th message of that stream
  uint64_t communicator = 0;  ///< id of (name, epoch)
  uint64_t sequence = 0;      ///< operation number within the communicator
  uint64_t fingerprint = 0;   ///< what the sender believes the operation is
  uint64_t length = 0;        ///< payload bytes, inline or offered
  uint64_t address = 0;       ///< kOffer: where the payload lies in the sender; between rails a number of theirs
  uint64_t cookie = 0;        ///< kOffer: names the offer; unique per endpoint while it is open
  uint32_t source = 0;        ///< sender's index within the communicator
  uint32_t tag = 0;           ///< send/recv only
};
static_assert(sizeof(FrameHeader) == 64);

/// Longest inline payload. Longer messages are offered.
constexpr uint64_t kInlineBytesMax = 16 * 1024;

/// Longest of a rail: a message with its header.
constexpr uint64_t kRailBytesMax = kInlineBytesMax + sizeof(FrameHeader);

inline bool isInline(FrameType type) {
  return type == FrameType::kData || type == FrameType::kControl || type == FrameType::kGoodbye ||
         type == FrameType::kRail || type == FrameType::kRelay;
}
inline uint64_t inlineLimit(FrameType type) { return type == FrameType::kRail ? kRailBytesMax : kInlineBytesMax; }

/// What send() answers to a longer one.
inline Status inlineTooLong(const std::string& description, uint64_t bytes) {
  return Status(Kind::kBadArgument, Scope::kCall, "bad_frame",
                description + ": inline payload of " + std::to_string(bytes) + " bytes, at most " +
                    std::to_string(kInlineBytesMax) + " allowed; offer it instead");
}

/// What a path has carried, as the peer's host confirms it: its kernel or NIC, whatever its process does.
struct Answered {
  uint64_t bytes = 0;
  int64_t busy_ns = 0;  ///< how long there was something to confirm; 0: not known here
};

/// What one poll of an endpoint reports. `payload` is valid during the call only.
class EventSink {
 public:
  virtual ~EventSink() = default;
  virtual void onFrame(const FrameHeader& header, const void* payload) = 0;
  /// A fetch ended; after an error the destination's content is undefined.
  virtual void onFetched(uint64_t token, Status status) = 0;
  /// The peer's process has everything of this offer, or it lies in memory that both share: the offer's memory may be
  /// reused, and nothing of it is lost with the path.
  virtual void onReleased(uint64_t cookie) = 0;
};

class Endpoint {
 public:
  virtual ~Endpoint() = default;

  /// Sends header (and `header.length` payload bytes, copied before return, unless it is an offer).
  /// False: no room now, nothing was taken, try again after a poll. An offer's memory must stay valid and unchanged
  /// until onReleased(cookie) or revoke(cookie).
  virtual Result<bool> send(const FrameHeader& header, const void* payload) = 0;

  /// Starts moving an offered payload into `destination` (offer.length bytes). True: done at once, no event follows.
  /// False: onFetched(token) follows. Each offer is fetched at most once.
  virtual Result<bool> fetch(const FrameHeader& offer, void* destination, uint64_t token) = 0;

  /// Ends an unfinished fetch: `destination` is not touched after the return; no event follows.
  virtual void cancel(uint64_t token) = 0;

  /// Withdraws an open offer: this process does not read its memory after the return; no event follows.
  virtual void revoke(uint64_t cookie) = 0;

  /// One bounded pass: sends what is queued, reports what came. An error is final: the endpoint is broken
  /// (scope kEndpoint; the message carries the exact system text).
  virtual Status poll(EventSink& sink) = 0;

  /// Sleeping: a descriptor that becomes readable when there is something to poll...
  virtual int waitDescriptor() const = 0;
  /// ...after this was called and returned true. False: there is something already, or room for a send() that was
  /// refused: do not sleep. Who was refused is woken for room, too.
  /// `in_operation`: wake for every frame. Else only control frames, goodbyes and the peer's end need to wake: messages
  /// of operations this side has not started can wait, and waking for them would cost both sides a system call a
  /// message.
  virtual bool prepareSleep(bool in_operation) = 0;
  /// Output is queued, so wait for writability too.
  virtual bool wantsWrite() const = 0;

  /// The processor on which the peer last polled, or -1 where that is not known: spinning there would keep it from
  /// running.
  virtual int peerCpu() const { return -1; }

  /// How long the peer's host has left bytes of ours without an answer, beyond what this path usually takes. 0: none
  /// are, or that is not known here.
  virtual int64_t unansweredNs(int64_t /*now_ns*/) { return 0; }
  virtual Answered answered() { return {}; }

  /// What moves the bytes here reaches device memory where Device::alias() says it is seen: offers and destinations may
  /// lie there. Else they are memory of the host.
  virtual bool seesDevices() const { return false; }

  virtual const char* transportName() const = 0;
  /// One line for status and errors: "tcp 127.0.0.1:4711 -> 127.0.0.1:4712".
  virtual const std::string& description() const = 0;
};

}  // namespace jhetcc::transport
