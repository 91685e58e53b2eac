// SPDX-License-Identifier: Apache-2.0
// One queue pair with all it needs: device, completions, the two rings and their registrations. One thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/fd.h"
#include "net/address.h"
#include "transport/verbs/library.h"
#include "transport/verbs/place.h"
#include "transport/verbs/verbs.h"

namespace jhetcc::transport::verbs {

constexpr uint32_t kSendsMax = 128;  ///< posted and not completed

/// Memory of the system's pages, registered as long as it lives.
class Registered {
 public:
  Registered() = default;
  ~Registered() { reset(); }
  Registered(const Registered&) = delete;
  Registered& operator=(const Registered&) = delete;
  Status start(const Library& library, abi::Pd* pd, uint64_t bytes, int access);
  void reset();
  uint8_t* data() const { return data_; }
  const abi::Mr& mr() const { return *mr_; }

 private:
  const Library* library_ = nullptr;
  uint8_t* data_ = nullptr;
  uint64_t bytes_ = 0;
  abi::Mr* mr_ = nullptr;
};

class Link {
 public:
  /// Opens the device of this address and makes what this end needs.
  static Result<std::unique_ptr<Link>> open(const net::Address& local, const Options& options);
  /// The queue pair ends first: from its error state, so that nothing new begins. Then memory is let go.
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  /// For the other end's meet().
  std::string hello();
  /// From now on this end receives and may send. An error tells what the other end said.
  Status meet(std::string_view hello);

  int pollCq(abi::Wc* found, int count) { return context_->operations.poll_cq(cq_, count, found); }
  int postSend(abi::SendWr* first) {
    abi::SendWr* bad = nullptr;
    return context_->operations.post_send(qp_, first, &bad);
  }
  /// So many receives; they carry no memory, for messages write into the ring.
  int postReceives(uint32_t count);
  /// Wakes by the channel for what completes from now on; what has completed is not told.
  Status arm(bool solicited_only);
  /// Nothing that is posted later goes out, and what is under way comes back with an error.
  void fail();
  /// Ends all access to memory at once, without waiting for what is under way.
  void destroyQp();

  const Library& library() const { return *library_; }
  abi::Context* context() const { return context_; }
  abi::Pd* pd() const { return pd_; }
  int channelFd() const { return channel_->fd; }
  int asyncFd() const { return context_->async_fd; }
  const Place& here() const { return place_; }
  uint8_t* in() const { return in_.data(); }
  uint64_t ringBytes() const { return options_.ring_bytes; }  ///< of both ends'
  uint8_t* out() const { return out_.data(); }                ///< where the copy of the peer's ring is
  uint32_t outKey() const { return out_.mr().lkey; }
  uint64_t remoteRing() const { return remote_.ring_address; }
  uint32_t remoteKey() const { return remote_.ring_key; }
  uint32_t inlineBytes() const { return inline_bytes_; }

 private:
  /// What each end tells the other.
  struct Hello {
    uint32_t magic = 0;
    uint32_t version = 0;
    uint32_t qp = 0;
    uint32_t psn = 0;
    Gid gid{};
    uint64_t ring_address = 0;
    uint32_t ring_key = 0;
    uint32_t ring_bytes = 0;
    uint32_t mtu = 0;
    uint32_t zero = 0;
  };
  Link(const Library& library, const Options& options, const Place& place)
      : library_(&library), options_(options), place_(place) {}
  Status openDevice();
  Status openQp();
  Status makeReady();
  Status failed(const char* call) const;

  const Library* library_;
  const Options options_;
  const Place place_;
  abi::Context* context_ = nullptr;
  abi::Pd* pd_ = nullptr;
  abi::Channel* channel_ = nullptr;
  abi::Cq* cq_ = nullptr;
  abi::Qp* qp_ = nullptr;
  uint32_t mtu_ = 0;
  uint32_t inline_bytes_ = 0;
  Registered in_, out_;
  uint32_t psn_ = 0;
  Hello remote_;
  std::vector<abi::ReceiveWr> receives_;
  unsigned int unacknowledged_ = 0;  ///< events of the channel
};

}  // namespace jhetcc::transport::verbs
