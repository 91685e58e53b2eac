// SPDX-License-Identifier: Apache-2.0
// Several paths between two ranks as one endpoint: who uses it sees one ordered, lossless connection.
// Single-threaded, like every endpoint; clock and path endpoints are handed in.
//
// Small messages are numbered and go over one path, the primary; they are kept until the peer has acknowledged them and
// are sent again, from the first that is missing, over the next primary. Payloads are cut into stripes; each is an
// offer of its path, which the receiver fetches into its place. When a path is lost, its endpoint is gone at once, so
// nothing can come over it any more, and what was under way goes over the others. Both sides also tell each other which
// stripes they had: those go no more, or are taken back. What comes again and is whole is not taken; what comes again
// while the first is on its way into its place says that the path of the first was lost, and that one ends before.
// So every byte is taken exactly once, and a loss in the middle of that is one more loss.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "rail/path.h"
#include "transport/transport.h"

namespace jhetcc::rail {

struct BundleOptions {
  int64_t stall_ns = 200 * kNsPerMs;           ///< left unanswered this long while another path answers: lost
  int64_t no_path_ns = 10'000 * kNsPerMs;      ///< without any path that is answered this long: the peer is lost
  int64_t settle_ns = 200 * kNsPerMs;          ///< a path that came back answers probes this long before it is used;
  int64_t settle_max_ns = 300'000 * kNsPerMs;  ///< doubled, up to this, where it is lost again soon
  uint64_t stripe_bytes_max = 512 * 1024;
};

class Bundle final : public transport::Endpoint {
 public:
  Bundle(std::string description, const Clock& clock, const BundleOptions& options);
  ~Bundle() override;

  /// At the start; equal paths on both sides. Without an endpoint the path begins as lost.
  void addPath(const PathInfo& info, std::unique_ptr<transport::Endpoint> endpoint, const Status& why = Status());
  /// A lost path is connected anew. The side that connected says so first; the other hears it, and may not know yet
  /// that the path was lost.
  void reopenPath(uint16_t path, std::unique_ptr<transport::Endpoint> endpoint, bool connected_here,
                  const std::string& remote = "");
  /// No path leads to the peer itself, or none of them is answered, and no third rank passes on yet what is said (which
  /// is one more path, kRelayPath).
  bool needsRelay() const;
  bool hasDirectPath() const;
  /// The system says that it does not work: it is left if there is another, else kept, for TCP may outlive that, and
  /// counts as none. Or that nobody listens at its other end (code "refused"): if no path is left, the peer is gone.
  void failPath(uint16_t path, const Status& why);
  /// The system says that what it said before is over.
  void restorePath(uint16_t path);
  bool isBroken() const { return !broken_.isOk(); }
  /// The peer may not have all that was said yet. A goodbye is answered at once.
  bool hasUnacknowledged() const {
    if (!broken_.isOk() || peer_said_goodbye_ || kept_.empty()) return false;
    return goodbye_order_ == 0 || kept_.front().header.sequence <= goodbye_order_;
  }
  std::vector<PathStatus> paths() const;
  /// Told of every loss and return, inside other calls: may mark and wake, no more.
  void watch(std::function<void(const PathStatus&)> watcher) { watcher_ = std::move(watcher); }
  /// Told, in the same way, of every stripe that goes again, with the path it goes over.
  void watchResends(std::function<void(const PathStatus&, uint64_t bytes)> watcher) {
    resend_watcher_ = std::move(watcher);
  }

  Result<bool> send(const transport::FrameHeader& header, const void* payload) override;
  Result<bool> fetch(const transport::FrameHeader& offer, void* destination, uint64_t token) override;
  void cancel(uint64_t token) override;
  void revoke(uint64_t cookie) override;
  Status poll(transport::EventSink& sink) override;
  int waitDescriptor() const override;
  bool prepareSleep(bool in_operation) override;
  bool wantsWrite() const override;
  bool seesDevices() const override;
  const char* transportName() const override { return "rail"; }
  const std::string& description() const override { return description_; }

 private:
  class PathSink;
  /// A message until the peer has it.
  struct Kept {
    transport::FrameHeader header;  ///< the outer one, without acknowledgement
    std::vector<uint8_t> bytes;
    bool was_sent = false;
  };
  struct Offered {
    uint64_t cookie = 0, address = 0, length = 0;
    uint32_t stripe_bytes = 0;
    bool is_wanted = false;       ///< the peer has a place for it
    uint64_t unasked = 0;         ///< bytes sent before that, and not taken
    uint32_t left = 0;            ///< stripes that the peer does not have yet
    uint32_t count = 0;           ///< of all stripes
    uint32_t next = 0;            ///< the first that was never sent
    std::vector<uint32_t> again;  ///< lost with their path
    bool hasPending() const { return next < count || !again.empty(); }
    uint64_t bytesOf(uint32_t index) const;
  };
  struct Arriving {
    struct Waiting {
      Path* path;
      transport::FrameHeader header;
    };
    uint64_t length = 0;
    uint32_t stripe_bytes = 0;  ///< 0: the offer itself has not come yet; stripes may overtake it
    bool is_fetched = false;    ///< it has a place
    bool is_cancelled = false;
    uint8_t* destination = nullptr;
    uint64_t token = 0;
    uint32_t left = 0;
    std::vector<bool> taken;       ///< by stripe: whole, or on its way into its place
    std::vector<Waiting> waiting;  ///< for the place
  };
  /// Sent over a path that was lost, and again: the peer will say which of them it had.
  struct InDoubt {
    uint16_t path;
    uint32_t generation;
    std::vector<Stripe> stripes;
  };

  // bundle.cc: what goes out
  void keep(uint8_t what, const transport::FrameHeader& outer, const void* first, size_t first_bytes,
            const void* second, size_t second_bytes);
  void transmit();
  void acknowledge();
  void onAcknowledged(uint64_t order);
  void dispatch();
  bool dispatchFrom(std::deque<uint64_t>& numbers, bool is_wanted);
  Path* pathFor(uint64_t bytes, size_t stripes_max);
  void onWanted(uint64_t number);
  bool sendStripe(Path& path, uint64_t number, Offered& offer);
  void onStripeReleased(Path& path, uint64_t number);
  void countUnasked(const Stripe& stripe);
  void countTaken(uint64_t offer);
  uint32_t stripeBytes() const;

  // bundle_arriving.cc: what comes in
  void onPathFrame(Path& path, const transport::FrameHeader& header, const void* payload);
  void onStripe(Path& path, const transport::FrameHeader& header);
  void onStripeFetched(Path& path, uint64_t token, const Status& status);
  void onWithdrawn(uint64_t number);
  void onLostThere(uint16_t path, uint32_t generation, const std::vector<uint64_t>& taken);
  void onWholeThere(uint16_t path, uint32_t generation, const std::vector<uint64_t>& taken);
  void onNumbered(Path& path, const transport::FrameHeader& outer, const uint8_t* payload);
  bool onOffer(Path& path, const transport::FrameHeader& outer, transport::FrameHeader& inner);
  void onStripeAgain(Arriving& arriving, Path& path, const transport::FrameHeader& header);
  void startStripe(Arriving& arriving, Path& path, const transport::FrameHeader& header);
  static void onStripeTaken(Path& path, Arriving& arriving, uint64_t stripe, uint64_t bytes);
  void finishIfWhole(uint64_t number);
  void badFrame(Path& path, const std::string& what);

  // bundle_paths.cc: which paths there are; bundle_polls.cc: looks, probes, sleep
  Path* find(uint16_t path) const;
  Path* findOrRelay(uint16_t path);
  void choosePrimary();
  void forget(Path& path);
  void report(Path& path, uint32_t generation, uint8_t what);
  void lose(Path& path, const Status& why);
  void resolve(uint16_t path, uint32_t generation, const std::vector<uint64_t>& taken);
  bool hasOtherThan(const Path& path) const;
  void leaveUnreachable();
  void look(int64_t now_ns);
  void ask(int64_t now_ns);
  void lookForStall(int64_t now_ns);
  void lookForEnd(int64_t now_ns);
  uint64_t loadOf(const Path& path) const;
  void leaveIfItCrawls(Path& path, int64_t busy_ns);
  void settle(Path& path, int64_t now_ns);
  void tell(Path& path, const std::string& event);
  void sendAgain(const Stripe& stripe);
  void onTakenBefore(const Stripe& lost);
  void giveUp(const Status& why);
  void watchDescriptor(Path& path);
  void openHere(Path& path);
  void onOpen(Path& path, uint32_t generation);
  void probe(Path& path, int64_t now_ns);
  bool sendPlain(Path& path, uint8_t what, uint32_t index);
  bool needsLooks() const;

  std::string description_;
  const Clock& clock_;
  const BundleOptions options_;
  std::vector<std::unique_ptr<Path>> paths_;
  transport::Endpoint* polled_ = nullptr;
  std::unique_ptr<transport::Endpoint> gone_;  ///< lost while it was polled: destroyed after that
  std::function<void(const PathStatus&)> watcher_;
  std::function<void(const PathStatus&, uint64_t)> resend_watcher_;
  transport::EventSink* sink_ = nullptr;  ///< during a poll
  int64_t next_look_ns_ = 0, looked_ns_ = 0;
  bool has_dispatched_ = false;    ///< a stripe since the last look
  bool is_stuck_ = false;          ///< none, though the peer waits for some
  int64_t no_path_since_ns_ = -1;  ///< none, or none that is answered
  int64_t doubted_since_ns_ = -1;  ///< a path is silent
  bool is_in_operation_ = false;   ///< when last asleep
  int64_t next_ask_ns_ = 0;
  bool is_answer_due_ = false;  ///< something was sent since the last look, or was not answered then
  Status broken_;
  bool peer_said_goodbye_ = false;
  uint64_t goodbye_order_ = 0;  ///< of our own, once it is said: what follows it matters to nobody

  Path* primary_ = nullptr;
  std::deque<Kept> kept_;    ///< the peer has not acknowledged them
  std::vector<Kept> spare_;  ///< storage to be used again
  size_t sent_ = 0;          ///< of these, over the primary
  uint64_t kept_bytes_ = 0;
  uint64_t next_order_ = 1;      ///< of the next message kept
  uint64_t expected_order_ = 1;  ///< of the next message to come
  uint64_t acknowledged_ = 0;    ///< what the peer was told
  uint64_t unacknowledged_bytes_ = 0;

  std::unordered_map<uint64_t, Offered> offered_;  ///< by number
  std::deque<uint64_t> wanted_;                    ///< numbers of offers with stripes to be sent, oldest first
  std::deque<uint64_t> pending_;                   ///< of those that the peer may not want yet
  uint64_t unasked_bytes_ = 0;                     ///< of the latter, sent and not taken
  uint64_t pending_bytes_ = 0;
  uint64_t next_offer_ = 1;
  uint64_t next_stripe_ = 1;
  std::vector<InDoubt> in_doubt_;
  std::deque<uint64_t> released_;  ///< cookies to be reported

  std::unordered_map<uint64_t, Arriving> arriving_;  ///< by number of the offer
  uint64_t last_offer_ = 0;                          ///< of the peer, as heard
  std::deque<std::pair<uint64_t, Status>> fetched_;  ///< tokens to be reported

  Fd poller_;  ///< of all paths and the timer, once somebody sleeps
  Fd timer_;
  bool timer_runs_ = false;
};

}  // namespace jhetcc::rail
