// SPDX-License-Identifier: Apache-2.0
#include "talk.h"

#include <algorithm>
#include <cstring>

namespace jhetcc::rail::testing {

using transport::FrameHeader;
using transport::FrameType;

namespace {

/// What the k-th message of a side consists of.
void fill(std::vector<uint8_t>& bytes, int side, uint32_t index) {
  uint64_t state = (uint64_t{index} << 8 | static_cast<uint64_t>(side)) * 0x9E3779B97F4A7C15ULL + 1;
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (i % 8 == 0) state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    bytes[i] = static_cast<uint8_t>(state >> (8 * (i % 8)));
  }
}

constexpr uint8_t kPoison = 0xA5;

}  // namespace

Talk::Talk(uint64_t seed, int paths, const transport::sim::Options& options, const BundleOptions& bundle)
    : network(seed, options), random(seed ^ 0x7a11), seed_(seed) {
  for (int side = 0; side < 2; ++side) {
    sides[side].talk = this;
    sides[side].number = side;
    sides[side].bundle = std::make_unique<Bundle>(side == 0 ? "0 -> 1" : "1 -> 0", network.clock(), bundle);
  }
  for (int path = 0; path < paths; ++path) {
    auto ends = network.connect(0, 1);
    link_.push_back(path);
    const PathInfo info{static_cast<uint16_t>(path), 0, "a" + std::to_string(path), "b" + std::to_string(path)};
    sides[0].bundle->addPath(info, std::move(ends.first));
    sides[1].bundle->addPath(info, std::move(ends.second));
  }
}

void Talk::fail(const std::string& what) {
  if (failures.size() < 2000)
    failures += "seed " + std::to_string(seed_) + " at " + std::to_string(now()) + " ns: " + what + "\n";
}

std::string Talk::story() const {
  std::string text = failures;
  for (const Side& side : sides) {
    text += "side " + std::to_string(side.number) + " sent " + std::to_string(side.sent) + " of " +
            std::to_string(side.wanted) + ", received " + std::to_string(side.received) + ", not fetched " +
            std::to_string(side.to_fetch.size());
    for (const auto& [token, target] : side.targets) {
      if (!target.is_done && !target.is_cancelled && !target.is_refused) {
        text += ", fetch of message " + std::to_string(target.index) + " not done";
      }
    }
    for (const auto& [cookie, source] : side.sources) {
      if (source.is_open) text += ", offer " + std::to_string(cookie) + " open";
    }
    text += "; " + side.status.message();
    for (const PathStatus& path : side.bundle->paths()) {
      text += "\n  path " + std::to_string(path.info.path) + " " + stateName(path.state) + " generation " +
              std::to_string(path.generation) + " " + path.last_event;
    }
    text += "\n";
  }
  return text;
}

void Talk::say(uint32_t messages) {
  sides[0].wanted += messages;
  sides[1].wanted += messages;
}

void Talk::reopen(int path) {
  auto ends = network.connect(0, 1);
  link_[static_cast<size_t>(path)] = network.links(0, 1) - 1;
  sides[0].bundle->reopenPath(static_cast<uint16_t>(path), std::move(ends.first), true);
  sides[1].bundle->reopenPath(static_cast<uint16_t>(path), std::move(ends.second), false);
}

void Talk::sendOne(Side& side) {
  FrameHeader header;
  const uint64_t kind = draw(4);
  std::vector<uint8_t> bytes;
  if (kind == 0) {
    header.type = FrameType::kOffer;
    bytes.resize(draw(8) == 0 ? 0 : draw(payload_bytes_max));
    header.cookie = uint64_t{side.sent} * 7 + 3;
  } else {
    header.type = kind == 1 ? FrameType::kControl : FrameType::kData;
    bytes.resize(draw(draw(4) == 0 ? transport::kInlineBytesMax + 1 : 64));
  }
  header.index = side.sent;
  header.length = bytes.size();
  fill(bytes, side.number, side.sent);
  if (header.type == FrameType::kOffer) {
    side.sources[header.cookie] = {std::move(bytes), header.cookie};
    header.address = reinterpret_cast<uint64_t>(side.sources[header.cookie].bytes.data());
  }
  const Result<bool> taken = side.bundle->send(header, bytes.data());
  if (taken.isOk() && taken.value()) {
    ++side.sent;
  } else {
    side.sources.erase(header.cookie);
    if (!taken.isOk()) side.status = taken.status();
  }
}

void Talk::fetchOne(Side& side) {
  const size_t pick = draw(side.to_fetch.size());
  const FrameHeader offer = side.to_fetch[pick];
  side.to_fetch.erase(side.to_fetch.begin() + static_cast<std::ptrdiff_t>(pick));
  const uint64_t token = side.next_token++;
  Target& target = side.targets[token];
  target.index = offer.index;
  target.bytes.assign(offer.length, kPoison);
  const Result<bool> done = side.bundle->fetch(offer, target.bytes.data(), token);
  if (!done.isOk()) {
    side.status = done.status();
  } else if (done.value()) {
    side.onFetched(token, Status());
  } else if (may_revoke && draw(8) == 0) {
    target.is_cancelled = true;
    side.bundle->cancel(token);
    std::fill(target.bytes.begin(), target.bytes.end(), kPoison);  // must stay so
  }
}

void Talk::step(Side& side) {
  if (!side.status.isOk()) return;
  for (uint64_t k = draw(4); k > 0 && side.sent < side.wanted; --k) sendOne(side);
  if (!side.to_fetch.empty() && draw(2) == 0) fetchOne(side);
  if (may_revoke && draw(30) == 0) {
    for (auto& [cookie, source] : side.sources) {
      if (!source.is_open || draw(4) != 0) continue;
      side.bundle->revoke(cookie);
      source.is_open = false;
      source.is_revoked = true;
      std::fill(source.bytes.begin(), source.bytes.end(), kPoison);  // who reads it now reads this
      break;
    }
  }
  const Status status = side.bundle->poll(side);
  if (!status.isOk()) side.status = status;
}

bool Talk::run(int64_t limit_ns) {
  const int64_t end_ns = now() + limit_ns;
  while (now() < end_ns) {
    if (sides[0].isDone() && sides[1].isDone()) return true;
    if (!sides[0].status.isOk() && !sides[1].status.isOk()) return false;
    const int first = static_cast<int>(draw(2));
    step(sides[first]);
    if (draw(3) != 0) step(sides[1 - first]);
    const auto next = network.nextEventNs();
    network.runUntil(std::min(next ? *next : INT64_MAX, now() + 500'000));
  }
  return false;
}

bool Talk::Side::isDone() const {
  const bool all_come = sent == wanted && received == talk->sides[1 - number].sent && to_fetch.empty();
  const bool all_fetched = std::all_of(targets.begin(), targets.end(), [](const auto& one) {
    return one.second.is_done || one.second.is_cancelled || one.second.is_refused;
  });
  // An offer that the peer gave up stays open until its owner withdraws it.
  const bool all_released = talk->may_revoke || std::none_of(sources.begin(), sources.end(),
                                                             [](const auto& one) { return one.second.is_open; });
  return all_come && all_fetched && all_released;
}

void Talk::Side::onFrame(const FrameHeader& header, const void* payload) {
  if (header.index != received)
    return talk->fail("message " + std::to_string(header.index) + " instead of " + std::to_string(received));
  ++received;
  if (header.type == FrameType::kOffer) {
    to_fetch.push_back(header);
    return;
  }
  std::vector<uint8_t> expected(header.length);
  fill(expected, 1 - number, header.index);
  if (header.length > 0 && std::memcmp(expected.data(), payload, header.length) != 0)
    talk->fail("another payload than was sent");
}

void Talk::Side::onFetched(uint64_t token, Status fetched) {
  const auto found = targets.find(token);
  if (found == targets.end()) return talk->fail("a token that was not given");
  Target& target = found->second;
  if (target.is_done || target.is_cancelled || target.is_refused) return talk->fail("told twice of a fetch");
  if (!fetched.isOk()) {
    target.is_refused = true;
    if (!talk->may_revoke) talk->fail("refused: " + fetched.message());
    return;
  }
  target.is_done = true;
  std::vector<uint8_t> expected(target.bytes.size());
  fill(expected, 1 - number, target.index);
  if (expected != target.bytes) talk->fail("a fetched payload is wrong");
  std::fill(target.bytes.begin(), target.bytes.end(), kPoison);  // must stay so
}

void Talk::Side::onReleased(uint64_t cookie) {
  const auto found = sources.find(cookie);
  if (found == sources.end() || !found->second.is_open) return talk->fail("released what was not open");
  Source& source = found->second;
  source.is_open = false;
  std::fill(source.bytes.begin(), source.bytes.end(), kPoison);
}

}  // namespace jhetcc::rail::testing
