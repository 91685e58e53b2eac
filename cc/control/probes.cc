// SPDX-License-Identifier: Apache-2.0
#include "control/probes.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "control/membership_wire.h"

namespace jhetcc::control {

namespace {
constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
constexpr uint8_t kMagic = 0x57;
constexpr size_t kHopsMax = 64;
constexpr size_t kTextBytesMax = 96;      // 64 hops of it fit into one message
constexpr size_t kNamedMax = 16;          // ranks of a cycle that the text names
constexpr size_t kInitiatorsMax = 65536;  // remembered; far beyond any job
static_assert(11 + kHopsMax * (4 + 8 + 8 + 2 + kTextBytesMax) <= kMessageBytesMax);
}  // namespace

WaitProbes::WaitProbes(ProbesConfig config, Hooks hooks)
    : config_(config), hooks_(std::move(hooks)), next_ns_(kNever) {}

std::string WaitProbes::encode(Type type, uint64_t number, const std::vector<Hop>& path) const {
  Writer writer;
  writer.u8(kMagic);
  writer.u8(static_cast<uint8_t>(type));
  writer.u64(number);
  writer.u8(static_cast<uint8_t>(path.size()));
  for (const Hop& hop : path) {
    writer.u32(static_cast<uint32_t>(hop.rank));
    writer.u64(hop.instance.communicator);
    writer.u64(hop.instance.sequence);
    writer.text(hop.text, kTextBytesMax);
  }
  return writer.take();
}

void WaitProbes::sendTo(const std::vector<int32_t>& members, const std::string& message) const {
  for (const int32_t member : members) {
    if (member != config_.self) hooks_.send(member, message);
  }
}

void WaitProbes::tick(int64_t now_ns) {
  const std::optional<BlockedOperation> now_in = hooks_.current();
  if (!now_in) {
    probed_.reset();
    next_ns_ = kNever;
    return;
  }
  if (probed_ != now_in->instance) {
    probed_ = now_in->instance;
    interval_ns_ = config_.threshold_ns;
    next_ns_ = now_in->since_ns + config_.threshold_ns;
    found_ = Status();
  }
  if (!found_.isOk()) {
    next_ns_ = kNever;
    return;
  }
  if (now_ns < next_ns_) return;
  next_ns_ = now_ns + interval_ns_;
  interval_ns_ = std::min(2 * interval_ns_, config_.interval_max_ns);
  sendTo(now_in->members, encode(Type::kProbe, ++number_, {{config_.self, now_in->instance, now_in->text}}));
}

bool WaitProbes::mayForward(int32_t initiator, uint64_t number, int64_t now_ns) {
  const auto known = forwarded_.find(initiator);
  if (known != forwarded_.end() && number <= known->second) return false;
  if (known == forwarded_.end() && forwarded_.size() >= kInitiatorsMax) return false;
  if (now_ns >= window_ns_ + config_.threshold_ns) {
    window_ns_ = now_ns;
    window_count_ = 0;
  }
  if (window_count_ >= config_.forwards_per_threshold) return false;  // the initiator repeats itself
  ++window_count_;
  forwarded_[initiator] = number;
  return true;
}

void WaitProbes::onProbe(uint64_t number, std::vector<Hop> path, int64_t now_ns) {
  const Instance waited_for = path.back().instance;
  if (hooks_.has_started(waited_for)) return;
  const std::optional<BlockedOperation> now_in = hooks_.current();
  if (!now_in || now_in->instance == waited_for) return;
  if (path[0].rank == config_.self) {
    // Only the latest probe, and only while this rank never left the operation it was sent about.
    if (number != number_ || probed_ != now_in->instance || path[0].instance != now_in->instance || path.size() < 2)
      return;
    report(path, now_in->instance);
    std::vector<int32_t> ranks;
    for (const Hop& hop : path) ranks.push_back(hop.rank);
    sendTo(ranks, encode(Type::kCycle, number, path));
    return;
  }
  if (path.size() >= kHopsMax || !mayForward(path[0].rank, number, now_ns)) return;
  path.push_back({config_.self, now_in->instance, now_in->text});
  sendTo(now_in->members, encode(Type::kProbe, number, path));
}

// The finder's proof holds for every rank on the cycle, as long as it is in the operation that is named.
void WaitProbes::onCycle(const std::vector<Hop>& path) {
  const std::optional<BlockedOperation> now_in = hooks_.current();
  if (!now_in) return;
  for (const Hop& hop : path) {
    if (hop.rank == config_.self && hop.instance == now_in->instance) return report(path, now_in->instance);
  }
}

// The same text whoever found it first: it begins with the lowest rank.
void WaitProbes::report(const std::vector<Hop>& path, const Instance& instance) {
  if (!found_.isOk() && found_instance_ == instance) return;
  const auto lowest =
      std::min_element(path.begin(), path.end(), [](const Hop& a, const Hop& b) { return a.rank < b.rank; });
  std::vector<Hop> cycle(lowest, path.end());
  cycle.insert(cycle.end(), path.begin(), lowest);
  std::string text = "wait cycle between communicators: ";
  std::vector<int32_t> ranks;
  for (size_t i = 0; i < cycle.size(); ++i) {
    ranks.push_back(cycle[i].rank);
    if (i == kNamedMax) text += std::to_string(cycle.size() - i) + " more ranks, and back to the first; ";
    if (i >= kNamedMax) continue;
    const Hop& next = cycle[(i + 1) % cycle.size()];
    text += "rank " + std::to_string(cycle[i].rank) + " is in " + cycle[i].text + " and waits for rank " +
            std::to_string(next.rank) + "; ";
  }
  text += "issue the operations of these communicators in the same order on all ranks";
  found_ = Status(Kind::kMismatch, Scope::kCommunicator, "wait_cycle", text, ranks);
  found_instance_ = instance;
  probed_ = instance;
  next_ns_ = kNever;
}

void WaitProbes::onMessage(int32_t from, const void* data, size_t size, int64_t now_ns) {
  Reader reader(std::string_view(static_cast<const char*>(data), size));
  const uint8_t magic = reader.u8();
  const auto type = static_cast<Type>(reader.u8());
  const uint64_t number = reader.u64();
  const size_t hops = reader.u8();
  bool good = size <= kMessageBytesMax && magic == kMagic && hops >= 1 && hops <= kHopsMax &&
              (type == Type::kProbe || type == Type::kCycle);
  std::vector<Hop> path(good && reader.ok() ? hops : 0);
  for (Hop& hop : path) {
    hop.rank = static_cast<int32_t>(reader.u32());
    hop.instance.communicator = reader.u64();
    hop.instance.sequence = reader.u64();
    hop.text = reader.text(kTextBytesMax);
    good = good && hop.rank >= 0;
  }
  good = good && reader.done();
  if (good) good = (type == Type::kProbe ? path.back() : path.front()).rank == from;  // who says it waits is who waits
  if (!good) {
    ++malformed_;
  } else if (type == Type::kProbe) {
    onProbe(number, std::move(path), now_ns);
  } else {
    onCycle(path);
  }
}

}  // namespace jhetcc::control
