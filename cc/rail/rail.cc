// SPDX-License-Identifier: Apache-2.0
#include "rail/rail.h"

#include "rail/bundle.h"

namespace jhetcc::rail {
namespace {
// A peer that takes no control message for this long a queue is not listening; newer news replaces older.
constexpr size_t kControlBacklogMax = 4096;

struct Deaf : transport::EventSink {
  void onFrame(const transport::FrameHeader&, const void*) override {}
  void onFetched(uint64_t, Status) override {}
  void onReleased(uint64_t) override {}
};
}  // namespace

Rail::Rail(int32_t peer, std::unique_ptr<transport::Endpoint> endpoint)
    : peer_(peer), endpoint_(std::move(endpoint)), bundle_(dynamic_cast<Bundle*>(endpoint_.get())) {}

bool Rail::isDirect() const { return !isBroken() && (!bundle_ || bundle_->hasDirectPath()); }

bool Rail::hasUnacknowledged() const { return !isBroken() && bundle_ && bundle_->hasUnacknowledged(); }

bool Rail::hearsGoodbyes() const { return isBroken() && left_ && bundle_ && !bundle_->isBroken(); }

void Rail::peerSaidGoodbye() {
  left_ = true;
  breakWith(Status());
}

void Rail::sayGoodbye() {
  if (has_said_goodbye_) return;
  has_said_goodbye_ = true;
  transport::FrameHeader header;
  header.type = transport::FrameType::kGoodbye;
  sendControl(header, nullptr);
}

void Rail::breakWith(const Status& why) {
  if (isBroken()) return;
  if (left_) {
    broken_ = Status(Kind::kDisconnected, Scope::kRank, "left",
                     "rank " + std::to_string(peer_) + " closed its side (" + endpoint_->description() + ")", {peer_});
  } else {
    broken_ = Status(Kind::kDisconnected, Scope::kRank, "peer_lost",
                     "rank " + std::to_string(peer_) + " is gone (" + endpoint_->description() + "): " + why.message(),
                     {peer_});
  }
  control_.clear();
}

bool Rail::trySend(const transport::FrameHeader& header, const void* payload) {
  if (isBroken()) return false;
  Result<bool> taken = endpoint_->send(header, payload);
  if (!taken.isOk()) {
    breakWith(taken.status());
    return false;
  }
  return taken.value();
}

void Rail::sendControl(const transport::FrameHeader& header, const void* payload) {
  if (isBroken()) return;
  if (control_.empty() && trySend(header, payload)) return;
  if (isBroken()) return;
  if (control_.size() >= kControlBacklogMax) control_.pop_front();
  control_.push_back({header, std::string(static_cast<const char*>(payload), header.length)});
}

void Rail::flushControl() {
  while (!control_.empty() && trySend(control_.front().header, control_.front().payload.data())) control_.pop_front();
}

bool Rail::fetch(const transport::FrameHeader& offer, void* destination, uint64_t token) {
  if (isBroken()) return false;
  Result<bool> done = endpoint_->fetch(offer, destination, token);
  if (!done.isOk()) {
    breakWith(done.status());
    return false;
  }
  return done.value();
}

bool Rail::poll(transport::EventSink& sink) {
  if (!isBroken()) {
    if (!control_.empty()) flushControl();
    if (!isBroken()) {
      Status status = endpoint_->poll(sink);
      if (!status.isOk()) breakWith(status);
    }
    if (!isBroken() && !control_.empty()) flushControl();  // what came may have made room, and wakes nobody again
  }
  if (break_reported_ && hearsGoodbyes()) {
    Deaf deaf;
    (void)endpoint_->poll(deaf);
  }
  if (isBroken() && !break_reported_) {
    break_reported_ = true;
    return true;
  }
  return false;
}

}  // namespace jhetcc::rail
